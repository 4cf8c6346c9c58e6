// Drawn tokens and features: uniform or normal, and functions of the seed and the sample alone.
#include <troika/data/sources/random/random.h>
#include <troika/data/sources/random/random_features.h>
#include <unit/data/support.h>

#include <cmath>
#include <set>

namespace troika {
namespace {

std::unique_ptr<Dataset> open_random(const SampleSpec& sample, std::uint64_t seed,
                                     double held_out_fraction = 0) {
  return open_dataset(DataOptions(random_kind(), RandomOptions{held_out_fraction}), sample, seed);
}

const TensorSpec kFeatures{"features", at::kFloat, {10}};
const SampleSpec kClasses{{kFeatures, {"targets", at::kLong, {}, 4, {}, TensorRole::kTarget}}};
const SampleSpec kScores{{kFeatures, {"targets", at::kFloat, {4}, 0, {}, TensorRole::kTarget}}};

TEST(RandomTokens, AreTheSameInEveryBatch) {
  const auto dataset = open_random(token_samples(33, 1000), 7);
  const Microbatch all = build_microbatches(*dataset, Split::kTrain, {5, 6}, 6, 2).front();
  EXPECT_EQ(all.valid, 6 * 33);
  std::int64_t row = 0;
  for (const Microbatch& part : build_microbatches(*dataset, Split::kTrain, {5, 6}, 4, 2)) {
    const auto rows = at::indexing::Slice(row, row + part.samples());
    EXPECT_TRUE(at::equal(part.tensors[0], all.tensors[0].index({rows})));
    EXPECT_TRUE(at::equal(part.tensors[1], all.tensors[1].index({rows})));
    EXPECT_TRUE(at::equal(part.sample_ids, all.sample_ids.index({rows})));
    row += part.samples();
  }
  EXPECT_EQ(row, 6);
  // Targets are the inputs shifted by one.
  using at::indexing::Slice;
  EXPECT_TRUE(at::equal(all.tensors[0].index({Slice(), Slice(1)}),
                        all.tensors[1].index({Slice(), Slice(0, -1)})));
}

TEST(RandomTokens, AreUniform) {
  const auto dataset = open_random(token_samples(1000, 10), 7);
  const Microbatch batch = build_microbatches(*dataset, Split::kTrain, {0, 100}, 100, 1).front();
  const at::Tensor counts = at::bincount(batch.tensors[1].flatten(), {}, 10).to(at::kDouble);
  EXPECT_EQ(counts.size(0), 10);
  EXPECT_LT((counts - 10000).abs().max().item<double>(), 500);  // five standard deviations
}

// No token of a sample says what another one is: of 1,000 words a pair is equal by chance in one
// sample of 1,000.
TEST(RandomTokens, DoNotFollowFromOneAnother) {
  constexpr std::int64_t kSamples = 1000;
  const auto dataset = open_random(token_samples(6, 1000), 7);
  const Microbatch batch =
      build_microbatches(*dataset, Split::kTrain, {0, kSamples}, kSamples, 1).front();
  const at::Tensor tokens = at::cat({batch.tensors[0].narrow(1, 0, 1), batch.tensors[1]}, 1);
  for (std::int64_t i = 0; i < tokens.size(1); ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      const at::Tensor equal = tokens.select(1, i).eq(tokens.select(1, j)).sum();
      EXPECT_LT(equal.item<std::int64_t>(), 10) << i << " and " << j;
    }
  }
}

TEST(RandomTokens, KeepStreamsApart) {
  const auto one = open_random(token_samples(64, 1000), 1, 0.1);
  const auto two = open_random(token_samples(64, 1000), 2, 0.1);
  const auto first = [](const Dataset& dataset, Split split) {
    return build_microbatches(dataset, split, {0, 1}, 1, 1).front().tensors[0];
  };
  EXPECT_FALSE(at::equal(first(*one, Split::kTrain), first(*two, Split::kTrain)));
  EXPECT_FALSE(at::equal(first(*one, Split::kTrain), first(*one, Split::kHeldOut)));
  EXPECT_EQ(one->samples(Split::kTrain), kUnlimited);
  EXPECT_EQ(one->samples(Split::kHeldOut), kRandomHeldOutSamples);
  EXPECT_EQ(open_random(token_samples(64), 1)->samples(Split::kHeldOut), 0);
  EXPECT_FALSE(one->bytes_per_token().has_value());
}

TEST(RandomTokens, DrawWhatElseASampleHas) {
  const SampleSpec tokens = token_samples(33, 1000);
  SampleSpec sample = tokens;
  sample.tensors.insert(sample.tensors.begin() + 1,
                        {{"mask", at::kLong, {33}, 2}, {"bias", at::kFloat, {2, 3}}});
  const Microbatch plain =
      build_microbatches(*open_random(tokens, 7), Split::kTrain, {0, 4}, 4, 1).front();
  const auto dataset = open_random(sample, 7);
  const Microbatch all = build_microbatches(*dataset, Split::kTrain, {0, 4}, 4, 1).front();
  std::vector<std::string> names, expected;
  for (const NamedTensor& each : all.tensors) names.push_back(each.name);
  for (const TensorSpec& each : sample.tensors) {
    if (!each.optional) expected.push_back(each.name);
  }
  EXPECT_EQ(names, expected);
  EXPECT_TRUE(at::equal(all.tensors[0], plain.tensors[0]));
  EXPECT_TRUE(at::equal(all.tensors[3], plain.tensors[1]));
  EXPECT_EQ(all.tensors[1].sizes(), at::IntArrayRef({4, 33}));
  EXPECT_EQ(std::get<0>(at::_unique(all.tensors[1])).numel(), 2);
  EXPECT_EQ(all.tensors[2].sizes(), at::IntArrayRef({4, 2, 3}));
  const Microbatch last = build_microbatches(*dataset, Split::kTrain, {3, 1}, 1, 1).front();
  EXPECT_TRUE(at::equal(last.tensors[1][0], all.tensors[1][3]));
}

TEST(RandomFeatures, HaveTargetsOfALinearTeacher) {
  const auto classes = open_random(kClasses, 3);
  const auto scores = open_random(kScores, 3);
  const Microbatch a = build_microbatches(*classes, Split::kTrain, {0, 500}, 500, 1).front();
  const Microbatch b = build_microbatches(*scores, Split::kTrain, {0, 500}, 500, 1).front();
  EXPECT_EQ(a.tensors[0].scalar_type(), at::kFloat);
  EXPECT_EQ(a.tensors[0].sizes(), (std::vector<std::int64_t>{500, 10}));
  EXPECT_EQ(b.tensors[1].sizes(), (std::vector<std::int64_t>{500, 4}));
  EXPECT_EQ(a.valid, 500);
  EXPECT_TRUE(at::equal(a.tensors[0], b.tensors[0]));
  EXPECT_TRUE(at::equal(a.tensors[1], b.tensors[1].argmax(1)));
  EXPECT_EQ(std::get<0>(at::_unique(a.tensors[1])).numel(), 4);
  // Least squares finds the teacher: nothing is left.
  const at::Tensor x = b.tensors[0].to(at::kDouble), y = b.tensors[1].to(at::kDouble);
  const at::Tensor weights = at::linalg_solve(x.t().mm(x), x.t().mm(y));
  EXPECT_LT((x.mm(weights) - y).abs().max().item<double>(), 1e-5);
  EXPECT_NEAR(y.var().item<double>(), 1, 0.5);
}

TEST(NormalTable, IsNormal) {
  const NormalTable table;
  std::vector<float> values(1 << 20);
  table.fill(1, 2, values);
  double mean = 0, square = 0, fourth = 0, inside_quartiles = 0, beyond_two = 0;
  const auto count = static_cast<double>(values.size());
  for (const double x : values) {
    mean += x / count;
    square += x * x / count;
    fourth += x * x * x * x / count;
    inside_quartiles += std::abs(x) < 0.6744897502 ? 1 / count : 0;
    beyond_two += std::abs(x) > 2 ? 1 / count : 0;
  }
  EXPECT_NEAR(mean, 0, 0.005);
  EXPECT_NEAR(square, 1, 0.01);
  EXPECT_NEAR(fourth, 3, 0.05);
  EXPECT_NEAR(inside_quartiles, 0.5, 0.0025);
  EXPECT_NEAR(beyond_two, 0.0455003, 0.001);
}

TEST(NormalTable, IsAddressedBySample) {
  const NormalTable table;
  std::vector<float> few(7), many(100), other(100);
  table.fill(1, 2, few);
  table.fill(1, 2, many);
  table.fill(1, 3, other);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(many, other);
}

}  // namespace
}  // namespace troika
