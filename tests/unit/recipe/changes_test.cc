#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/changes.h>
#include <troika/recipe/recipe_file.h>

#include <algorithm>

namespace troika {
namespace {

Recipe recipe_with(const std::vector<std::string>& sets) {
  return parse_recipe(R"(
name = "r"
[model]
kind = "gpt"
layers = 1
dim = 8
heads = 2
ffn_dim = 8
vocab_size = 256
seq_len = 8
[data]
kind = "text"
paths = ["a/*.txt", "b.txt"]
)",
                      "recipe", sets)
      .recipe;
}

// "key may" of every key that a setting changes.
std::vector<std::string> changed_by(const std::string& set) {
  std::vector<std::string> found;
  for (const KeyChange& change : changes_between(recipe_with({}), recipe_with({set}))) {
    constexpr std::array kWords = {" always", " asked", " never"};
    found.push_back(change.key + kWords.at(static_cast<std::size_t>(change.may)));
  }
  return found;
}

TEST(Changes, AreSortedByWhatTheyMeanForARunThatGoesOn) {
  using testing::ElementsAre;
  EXPECT_THAT(changed_by("train.steps=7"), ElementsAre("train.steps asked"));
  EXPECT_THAT(changed_by("optimizer.lr=0.5"), ElementsAre("optimizer.lr asked"));
  EXPECT_THAT(changed_by(R"(optimizer.groups=[{match="*norm*", frozen=true}])"),
              ElementsAre("optimizer.groups asked"));
  EXPECT_THAT(changed_by("train.precision=fp64"), ElementsAre("train.precision asked"));
  EXPECT_THAT(changed_by("sync.kind=local"), testing::Contains("sync.kind asked"));
  EXPECT_THAT(changed_by("parallel.tensor=2"), ElementsAre("parallel.tensor always"));
  EXPECT_THAT(changed_by("checkpoint.keep=9"), ElementsAre("checkpoint.keep always"));
  EXPECT_THAT(changed_by("checkpoint.key=env:KEY"), ElementsAre("checkpoint.key asked"));
  EXPECT_THAT(changed_by("checkpoint.folder=/else"), ElementsAre("checkpoint.folder never"));
  EXPECT_THAT(changed_by("model.layers=2"), ElementsAre("model.layers never"));
  EXPECT_THAT(changed_by("seed=5"), ElementsAre("seed never"));
  EXPECT_THAT(changed_by("optimizer.betas=[0.8, 0.9]"), ElementsAre("optimizer.betas never"));
  EXPECT_THAT(changed_by("model.from=runs/x"), ElementsAre("model.from never"));
  EXPECT_THAT(changed_by("optimizer.kind=sgd"),
              testing::IsSupersetOf({"optimizer.kind never", "optimizer.betas never"}));
  EXPECT_TRUE(changed_by("train.steps=200").empty());
}

TEST(Changes, TakeDataThatAreAddedAtTheEnd) {
  EXPECT_THAT(changed_by(R"(data.paths=["a/*.txt", "b.txt", "c.txt"])"),
              testing::ElementsAre("data.paths asked"));
  for (const char* other : {R"(data.paths=["a/*.txt"])", R"(data.paths=["b.txt", "a/*.txt"])",
                            R"(data.paths=["a/*.txt", "b.txt2"])"}) {
    EXPECT_THAT(changed_by(other), testing::ElementsAre("data.paths never")) << other;
  }
}

TEST(Changes, SayWhatAKeyWas) {
  const auto changes = changes_between(recipe_with({}), recipe_with({"train.steps=7"}));
  EXPECT_EQ(changes.at(0).describe(), "train.steps was 200 and is 7");
}

// A name that no kind of data, model or optimiser has would be a slip.
TEST(Changes, NameKeysThatThereAre) {
  std::vector<std::string> all;
  for (const SchemaKey& key : recipe_schema().all_keys()) all.push_back(key.full_name());
  for (const std::string& name : keys_that_may_change()) {
    EXPECT_GT(std::ranges::count(all, name), 0) << name;
  }
}

}  // namespace
}  // namespace troika
