// What a run keeps of its data, and what a trained model reads again.
#include <gmock/gmock.h>
#include <troika/base/file.h>
#include <troika/data/tokenizer.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = R"(
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
)";

class RunTokenizer : public testing::Test {
 protected:
  // A recipe of text with a tokenizer that is not read here, and the folder of its run.
  [[nodiscard]] Recipe recipe_with(const std::string& tokenizer) const {
    return parse_recipe(kRecipe, "recipe.toml",
                        std::vector<std::string>{"runs_dir=" + folder_.path().string(),
                                                 "data.tokenizer=" + tokenizer})
        .recipe;
  }
  [[nodiscard]] fs::path run() const { return folder_ / "r"; }
  [[nodiscard]] static std::string tokenizer_of(const Recipe& recipe) {
    return recipe.data.kind().tokenizer(recipe.data.options()).value();
  }
  TemporaryFolder folder_;
};

TEST_F(RunTokenizer, IsThatOfItsFolderWhereverTheFileHasGone) {
  fs::create_directories(folder_ / "ours");
  for (const char* const name : {"tokenizer.json", "tokenizer_config.json", "notes.txt"}) {
    write_file_atomically(folder_ / "ours" / name, std::string("{\"") + name + "\": 1}");
  }
  for (const std::string given : {"ours/tokenizer.json", "ours"}) {
    const Recipe recipe = recipe_with((folder_ / given).string());
    make_folders(run());
    write_recipe(recipe, {});
    EXPECT_EQ(tokenizer_of(recipe_of_trained(run())), (folder_ / given).string());
    write_data_description(recipe, run(), "{}");
    const fs::path kept = run() / "tokenizer/tokenizer.json";
    EXPECT_EQ(tokenizer_of(recipe_of_trained(run())), kept.string());
    EXPECT_EQ(read_file(kept, 100), "{\"tokenizer.json\": 1}");
    EXPECT_TRUE(fs::exists(run() / "tokenizer/tokenizer_config.json"));
    EXPECT_FALSE(fs::exists(run() / "tokenizer/notes.txt"));
    EXPECT_EQ(read_file(data_path(run()), 100), "{}");
    const std::vector<std::string> other = {"data.tokenizer=bytes"};
    EXPECT_EQ(tokenizer_of(recipe_of_trained(run(), other)), "bytes");
    fs::remove_all(run());
  }
}

TEST_F(RunTokenizer, OfBytesIsNone) {
  const Recipe recipe = recipe_with("bytes");
  make_folders(run());
  write_recipe(recipe, {});
  write_data_description(recipe, run(), "");
  EXPECT_FALSE(fs::exists(run() / "tokenizer"));
  EXPECT_FALSE(fs::exists(data_path(run())));
  EXPECT_EQ(tokenizer_of(recipe_of_trained(run())), "bytes");
}

}  // namespace
}  // namespace troika
