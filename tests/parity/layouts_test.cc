// The same numbers on every layout: GPTs of every kind on data, tensor and pipeline axes, with all
// schedules, stages of ZeRO, microbatches and ways of checkpointing, pairwise.
// `make test-parity` runs the complete matrix.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/index_range.h>
#include <troika/data/kind.h>
#include <troika/models/gpt/options.h>
#include <troika/verify/layout_text.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "matrix.h"

namespace troika::test {
namespace {

constexpr int kShards = 4;  // tests, which may run at the same time
// Of one of 4 data ranks, of the 11 in a step.
constexpr std::int64_t kFewestSamples = 2;

class Layouts : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { write_shards(folder_ / "shards"); }
  [[nodiscard]] std::filesystem::path shards() const { return folder_ / "shards"; }

  void expect_agreement(const MatrixCase& one) const {
    for (const std::string& failure : verify(one, folder_.path())) ADD_FAILURE() << failure;
  }

 private:
  TemporaryFolder folder_;
};

TEST_P(Layouts, OfEveryPairAgreeWithOneRank) {
  const std::vector<MatrixCase> cases = pairwise_matrix(shards());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (static_cast<int>(i) % kShards == GetParam()) expect_agreement(cases[i]);
  }
}
INSTANTIATE_TEST_SUITE_P(Shard, Layouts, testing::Range(0, kShards));

class Matrix : public Layouts {};

TEST_F(Matrix, OfTheMlpAgreesWithOneRank) {
  expect_agreement(mlp_case());
}

// The fewest targets that count on one of `ranks` data ranks in a step.
std::int64_t fewest_targets(const Recipe& recipe, std::int64_t step, std::int64_t ranks) {
  const SampleSpec sample = traits_of(recipe.model).sample;
  const auto dataset = open_dataset(recipe.data, sample, static_cast<std::uint64_t>(recipe.seed));
  const std::int64_t samples = recipe.train.global_batch_size;
  std::int64_t fewest = samples * sample.targets_per_sample;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    IndexRange range = even_split(samples, static_cast<int>(rank), static_cast<int>(ranks));
    range.first += (step - 1) * samples;
    const auto batches = build_microbatches(*dataset, Split::kTrain, range, range.count, step);
    fewest = std::min(fewest, batches.front().valid);
  }
  return fewest;
}

TEST_F(Matrix, AgreesWhereARankHasNoTargetAtAll) {
  const MatrixCase one = case_without_targets(shards());
  ASSERT_FALSE(one.layouts.empty());
  ASSERT_EQ(fewest_targets(one.recipe, 1, 4), 0) << "every rank has a target";
  ASSERT_GT(fewest_targets(one.recipe, 1, 1), 0) << "no rank has a target";
  expect_agreement(one);
}

TEST_F(Matrix, HasWhatItIsToHave) {
  int unequal = 0, many_ranks = 0, layouts = 0;
  for (const MatrixCase& one : pairwise_matrix(shards())) {
    unequal += fewest_targets(one.recipe, 1, 4) <
               kFewestSamples * one.recipe.model.as<GptOptions>().seq_len;
    for (const TrialLayout& layout : one.layouts) {
      many_ranks += layout.ranks() == kMostRanks ? 1 : 0;
      ++layouts;
    }
  }
  EXPECT_GT(unequal, 0) << "every target counts in every case";
  EXPECT_GT(many_ranks, 0);
  // Every pair of seven schedules and seven ways of ZeRO must be there.
  EXPECT_GE(layouts, 49);
}

TEST_F(Matrix, HasEveryLayoutWhereItIsComplete) {
  std::set<std::string> possible, tried, data, heads;
  for (const MatrixCase& one : complete_matrix(shards())) {
    for (const TrialLayout& layout : one.layouts) tried.insert(describe(layout, one.recipe));
    // Which layouts there are depends on these alone.
    const auto& model = one.recipe.model.as<GptOptions>();
    const std::string kind = std::to_string(model.heads) + "/" + std::to_string(model.kv_heads);
    if (heads.insert(kind + ", " + std::to_string(model.layers)).second) {
      for (const TrialLayout& layout : all_layouts(one.recipe, kMostRanks)) {
        possible.insert(describe(layout, one.recipe));
      }
    }
    data.insert(one.name.substr(one.name.rfind(", ")) + ", " + kind);
  }
  EXPECT_EQ(heads.size(), 3 * 2);
  EXPECT_EQ(data.size(), 4 * 3) << "each way of the data with each number of heads";
  std::vector<std::string> missing;
  std::ranges::set_difference(possible, tried, std::back_inserter(missing));
  EXPECT_EQ(missing.size(), 0) << (missing.empty() ? "" : missing.front());
  EXPECT_GT(tried.size(), 1000);
}

}  // namespace
}  // namespace troika::test
