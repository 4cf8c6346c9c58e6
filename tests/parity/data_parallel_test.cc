// The same numbers on every number of ranks: fp64 gradients within 1e-12 of the largest element of
// each, plus 1e-14 of the largest of the model; and the same bits where the design says so.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/verify/comparison.h>

#include <algorithm>
#include <fstream>

#include "command_runs.h"

namespace troika::test {
namespace {

void expect_equal(const std::vector<NamedTensor>& expected, const std::vector<NamedTensor>& actual,
                  Tolerance tolerance) {
  RunComparison comparison;
  comparison.compare("here", expected, actual, tolerance);
  EXPECT_EQ(comparison.result().first_difference, "") << comparison.result().of_tolerance;
}

void expect_same_bits(const std::vector<NamedTensor>& expected,
                      const std::vector<NamedTensor>& actual) {
  expect_equal(expected, actual, Tolerance::same_bits());
}

// Targets that count, by sample.
at::Tensor valid_targets(const CommandRun& run, int step) {
  const std::vector<NamedTensor> batch = dumped(run, step, "batch");
  const auto targets = std::ranges::find(batch, "targets", &NamedTensor::name);
  if (targets == batch.end()) throw std::runtime_error("a batch without targets");
  return targets->tensor.ne(-100).sum(1);
}

// The least number of targets that count on one of `ranks` ranks, which take contiguous parts of
// the batch, the first ones a sample more where it does not divide.
std::int64_t fewest_targets(const at::Tensor& valid, std::int64_t ranks) {
  std::int64_t fewest = valid.sum().item<std::int64_t>(), begin = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = valid.size(0) / ranks + (rank < valid.size(0) % ranks ? 1 : 0);
    fewest = std::min(fewest, valid.narrow(0, begin, count).sum().item<std::int64_t>());
    begin += count;
  }
  return fewest;
}

class DataParallel : public testing::Test {
 protected:
  void SetUp() override { write_corpus(folder_.path() / "corpus"); }

  // Documents of one letter, and the override that takes them alone.
  [[nodiscard]] std::string write_letters() const {
    const std::filesystem::path letters = folder_.path() / "letters";
    std::filesystem::create_directories(letters);
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      std::ofstream(letters / (std::string(1, letter) + ".txt")) << letter;
    }
    return "data.paths=[\"" + letters.string() + "/*.txt\"]";
  }

  CommandRun run(const std::string& name, int ranks, std::vector<std::string> extra = {},
                 CommandRun::Model model = CommandRun::Model::kGpt) {
    CommandRun run{
        folder_.path() / "runs", folder_.path() / "corpus", name, ranks, std::move(extra), model};
    train(run);
    return run;
  }

  static void expect_agreement(const CommandRun& one, const CommandRun& other) {
    SCOPED_TRACE(one.name + " and " + other.name);
    RunComparison comparison;
    comparison.compare_runs(run_folder_of(one), run_folder_of(other),
                            std::vector<std::int64_t>{1, 3}, Tolerance());
    const Comparison& found = comparison.result();
    EXPECT_TRUE(found.agrees()) << found.first_difference << ", " << found.of_tolerance
                                << " of what is allowed of " << found.largest_of;
    ASSERT_EQ(losses(one).size(), 3);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(DataParallel, AgreesOnOneToFourRanksWhenTheBatchDoesNotDivide) {
  const CommandRun one = run("one", 1);
  for (int ranks = 2; ranks <= 4; ++ranks) {
    expect_agreement(one, run("ranks-" + std::to_string(ranks), ranks));
  }
}

TEST_F(DataParallel, AgreesWhenRanksHaveUnequalNumbersOfValidTokens) {
  const std::vector<std::string> pad = {"data.pack=pad", "model.bias=true", "model.norm=layernorm",
                                        "model.position=learned", "model.activation=gelu_tanh"};
  const CommandRun one = run("padded", 1, pad);
  const at::Tensor valid = valid_targets(one, 1);
  ASSERT_GT((valid.max() - valid.min()).item<std::int64_t>(), 0) << "the corpus is too even";
  for (int ranks = 2; ranks <= 4; ++ranks) {
    expect_agreement(one, run("padded-" + std::to_string(ranks), ranks, pad));
  }
}

TEST_F(DataParallel, AgreesWhenARankHasNoValidTokenAtAll) {
  // Every other sample is a separator, whose target belongs to another document.
  const std::vector<std::string> single = {write_letters(), "data.pack=isolated",
                                           "model.seq_len=1"};
  const CommandRun one = run("single", 1, single);
  ASSERT_EQ(fewest_targets(valid_targets(one, 1), 4), 0) << "every rank has a target";
  ASSERT_GT(valid_targets(one, 1).sum().item<std::int64_t>(), 1);
  for (const int ranks : {2, 4}) {
    expect_agreement(one, run("single-" + std::to_string(ranks), ranks, single));
  }
}

TEST_F(DataParallel, AgreesWithDropoutIsolatedDocumentsAndUntiedEmbeddings) {
  const std::vector<std::string> extra = {"model.dropout=0.2", "data.pack=isolated",
                                          "model.tied_embeddings=false", "model.kv_heads=1"};
  expect_agreement(run("one", 1, extra), run("three", 3, extra));
}

TEST_F(DataParallel, AgreesForTheMlpOnRandomData) {
  const auto mlp = CommandRun::Model::kMlp;
  for (const std::string loss : {"cross_entropy", "mean_square"}) {
    expect_agreement(run("one-" + loss, 1, {"model.loss=" + loss}, mlp),
                     run("four-" + loss, 4, {"model.loss=" + loss}, mlp));
  }
}

TEST_F(DataParallel, AgreesWhateverTheMicrobatch) {
  expect_agreement(run("micro-2", 1), run("micro-7", 1, {"train.micro_batch_size=7"}));
}

TEST_F(DataParallel, RepeatsTheSameBitsWhenDeterministic) {
  const std::vector<std::string> extra = {"train.deterministic=true", "train.precision=fp32"};
  const CommandRun first = run("first", 3, extra), second = run("second", 3, extra);
  expect_same_bits(dumped(first, 3, "gradients"), dumped(second, 3, "gradients"));
  expect_same_bits(dumped(first, 3, "parameters"), dumped(second, 3, "parameters"));
  EXPECT_EQ(losses(first), losses(second));
}

TEST_F(DataParallel, FollowsFloatInLowPrecision) {
  const CommandRun reference = run("fp32", 1, {"train.precision=fp32"});
  for (const std::string precision : {"bf16", "fp16"}) {
    const CommandRun low = run(precision, 2, {"train.precision=" + precision});
    const std::vector<double> expected = losses(reference), actual = losses(low);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 0.02);
    const auto exact = dumped(reference, 1, "gradients"), rounded = dumped(low, 1, "gradients");
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double distance = (exact[i].tensor - rounded[i].tensor).norm().item<double>();
      EXPECT_LT(distance, 0.05 * exact[i].tensor.norm().item<double>() + 1e-3) << exact[i].name;
    }
  }
}

}  // namespace
}  // namespace troika::test
