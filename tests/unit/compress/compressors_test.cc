// Each compressor alone in its group: what it sends, what it keeps, and what its kind makes of it.
// Several ranks are in tests/ranks.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

using Hook = std::shared_ptr<BucketHook>;

constexpr std::int64_t kElements = 1000;

Call call() {
  return {"test", Deadline::in(Seconds(30))};
}

at::Tensor normal(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType type = at::kFloat) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), type);
}

// One bucket of a hook on the only rank.
struct Alone {
  Hook hook;
  std::vector<BucketPart> parts = {};
  Group group = {};

  [[nodiscard]] GradientBucket bucket(const at::Tensor& gradients) const {
    return {0, gradients, &group, call(), parts};
  }
  // Returns what has been sent of the gradients.
  [[nodiscard]] at::Tensor sent(const at::Tensor& gradients, bool applied = true) const {
    const at::Tensor values = gradients.clone();
    hook->start(bucket(values)).wait();
    hook->finish(bucket(values));
    hook->end_step(applied);
    return values;
  }
  [[nodiscard]] BucketMemory& memory(const at::Tensor& gradients) const {
    return *hook->memory(bucket(gradients));
  }
};

std::vector<std::pair<std::string, Hook>> exact_hooks() {
  return {{"bf16", round_to_bf16()},
          {"fp16", round_to_fp16()},
          {"int8", compress_to_int8(64)},
          {"top_k", keep_top_k(0.1)},
          {"random_k", keep_random_k(0.1, 7)}};
}

TEST(Compressors, WhatIsSentAndWhatIsKeptIsTheInputToTheBit) {
  for (const auto& [name, hook] : exact_hooks()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const Alone alone{hook};
      const at::Tensor like = at::empty({kElements}, type);
      for (std::uint64_t step = 0; step < 4; ++step) {
        // Of many sizes, beyond fp16's range and below it.
        const at::Tensor gradients =
            normal({kElements}, step, type) * at::pow(10, normal({kElements}, 99 + step, type) * 3);
        const at::Tensor input = alone.memory(like).error + gradients;
        const at::Tensor sent = alone.sent(gradients);
        EXPECT_TRUE((alone.memory(like).error + sent).equal(input)) << name << " " << step;
        EXPECT_FALSE(sent.equal(input)) << name;
      }
    }
  }
}

TEST(Compressors, ErrorsAreSentLater) {
  for (const auto& [name, hook] : exact_hooks()) {
    const Alone alone{hook};
    const at::Tensor gradients = normal({kElements}, 1);
    at::Tensor sum = at::zeros({kElements});
    for (int step = 0; step < 400; ++step) sum += alone.sent(gradients);
    EXPECT_LT((sum / 400 - gradients).norm().item<double>(), 0.1 * gradients.norm().item<double>())
        << name;
  }
}

TEST(Compressors, AStepThatIsNotAppliedLeavesNoTrace) {
  auto hooks = exact_hooks();
  hooks.emplace_back("qsgd", compress_by_qsgd(4, 3));
  hooks.emplace_back("power_sgd", compress_by_power_sgd({.rank = 2}, 3));
  for (const auto& [name, hook] : hooks) {
    const Alone alone{hook, {{0, {40, 25}}}};
    const at::Tensor gradients = normal({kElements}, 1), others = normal({kElements}, 2);
    (void)alone.sent(others);
    const BucketMemory& memory = alone.memory(gradients);
    const at::Tensor error = memory.error.defined() ? memory.error.clone() : at::Tensor();
    const std::int64_t rounds = memory.rounds;
    const at::Tensor first = alone.sent(gradients, /*applied=*/false);
    EXPECT_EQ(memory.rounds, rounds);
    if (error.defined()) {
      EXPECT_TRUE(memory.error.equal(error)) << name;
    }
    EXPECT_TRUE(alone.sent(gradients).equal(first)) << name;
    EXPECT_EQ(memory.rounds, rounds + 1);
  }
}

TEST(Compressors, WhatIsNotFiniteIsTold) {
  auto hooks = exact_hooks();
  hooks.emplace_back("qsgd", compress_by_qsgd(4, 3));
  hooks.emplace_back("power_sgd", compress_by_power_sgd({.rank = 2}, 3));
  for (const auto& [name, hook] : hooks) {
    for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      const Alone alone{hook, {{0, {40, 25}}}};
      const at::Tensor gradients = normal({kElements}, 1);
      const at::Tensor bad = gradients.clone();
      bad[17] = value;
      EXPECT_FALSE(at::isfinite(alone.sent(bad, /*applied=*/false)).all().item<bool>()) << name;
      EXPECT_TRUE(at::isfinite(alone.sent(gradients)).all().item<bool>()) << name;
    }
  }
}

// Where nothing ends steps, an overflow must not stay either.
TEST(Compressors, GoOnAfterAnOverflowWithoutAnEndOfTheStep) {
  for (const auto& [name, hook] : exact_hooks()) {
    const Alone alone{hook};
    for (int step = 0; step < 3; ++step) {
      const at::Tensor gradients = normal({kElements}, 1);
      if (step == 1) gradients[3] = std::numeric_limits<float>::infinity();
      hook->start(alone.bucket(gradients)).wait();
      hook->finish(alone.bucket(gradients));
      EXPECT_EQ(at::isfinite(gradients).all().item<bool>(), step != 1) << name;
    }
  }
}

TEST(Compressors, TakeGradientsOf16Bits) {
  for (const auto& [name, hook] : exact_hooks()) {
    const Alone alone{hook};
    const at::Tensor gradients = normal({kElements}, 1).to(at::kBFloat16);
    const at::Tensor sent = alone.sent(gradients);
    EXPECT_EQ(sent.scalar_type(), at::kBFloat16);
    EXPECT_EQ(alone.memory(gradients).error.scalar_type(), at::kFloat);
    EXPECT_GT(sent.abs().max().item<double>(), 0) << name;
  }
}

TEST(Compressors, BeginAnewWhereBucketsAreCutAnew) {
  const Hook hook = keep_top_k(0.1);
  const at::Tensor gradients = normal({kElements}, 1);
  const Alone alone{hook, {{0, {kElements}}}}, other{hook, {{0, {600}}, {600, {400}}}};
  (void)alone.sent(gradients);
  EXPECT_GT(alone.memory(gradients).error.norm().item<double>(), 0);
  EXPECT_EQ(other.memory(gradients).error.norm().item<double>(), 0);
}

TEST(Compressors, TakeABucketWithoutElements) {
  for (const auto& [name, hook] : exact_hooks()) {
    EXPECT_EQ(Alone{hook}.sent(at::zeros({0})).numel(), 0) << name;
  }
}

// In buckets that come in any order and are cut anew, a bucket's memory is its own.
TEST(Compressors, RoundEachBucketOnTheWire) {
  for (const auto& [hook, type] :
       {std::pair{compress_to_bf16(), at::kBFloat16}, std::pair{compress_to_fp16(), at::kHalf}}) {
    const Group group;
    for (const std::int64_t elements : {100, 30, 100}) {
      std::vector<at::Tensor> values, expected;
      for (std::uint64_t i = 0; i < 3; ++i) {
        values.push_back(normal({elements + static_cast<std::int64_t>(i)}, i));
        expected.push_back(values.back().to(type).to(at::kFloat));
      }
      const auto bucket = [&](int i) {
        return GradientBucket{i, values[static_cast<std::size_t>(i)], &group, call(), {}};
      };
      for (const int i : {2, 0, 1}) hook->start(bucket(i)).wait();
      for (const int i : {2, 0, 1}) {
        hook->finish(bucket(i));
        EXPECT_TRUE(
            values[static_cast<std::size_t>(i)].equal(expected[static_cast<std::size_t>(i)]))
            << elements << ", bucket " << i;
      }
    }
  }
}

TEST(Int8, IsWithinHalfAScale) {
  const at::Tensor gradients = normal({kElements}, 1);
  for (const std::int64_t block : {1, 64, 999, 5000}) {
    const at::Tensor error = (Alone{compress_to_int8(block)}.sent(gradients) - gradients).abs();
    for (std::int64_t begin = 0; begin < kElements; begin += block) {
      const std::int64_t count = std::min(block, kElements - begin);
      const double scale = gradients.narrow(0, begin, count).abs().max().item<double>() / 127;
      EXPECT_LE(error.narrow(0, begin, count).max().item<double>(), scale * 0.5001) << begin;
    }
  }
}

TEST(Qsgd, IsWithinALevelAndUnbiased) {
  constexpr std::int64_t kLevels = 3;
  const Alone alone{compress_by_qsgd(kLevels, 5)};
  const at::Tensor gradients = normal({kElements}, 1, at::kDouble);
  constexpr int kDraws = 4000;
  at::Tensor sum = at::zeros_like(gradients);
  for (int i = 0; i < kDraws; ++i) sum += alone.sent(gradients);
  const at::Tensor error = (alone.sent(gradients) - gradients).abs();
  for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, 512}, {512, 488}}) {
    const double level = gradients.narrow(0, begin, count).norm().item<double>() / kLevels;
    EXPECT_LE(error.narrow(0, begin, count).max().item<double>(), level * (1 + 1e-6));
    // A value is off by at most half a level in root mean square: five deviations of the mean.
    const at::Tensor off = (sum / kDraws - gradients).narrow(0, begin, count).abs();
    EXPECT_LE(off.max().item<double>(), 5 * 0.5 * level / std::sqrt(double{kDraws}));
  }
  EXPECT_FALSE(alone.sent(gradients).equal(alone.sent(gradients)));
  const Alone again{compress_by_qsgd(kLevels, 5)}, another{compress_by_qsgd(kLevels, 6)};
  const at::Tensor first = Alone{compress_by_qsgd(kLevels, 5)}.sent(gradients);
  EXPECT_TRUE(again.sent(gradients).equal(first));
  EXPECT_FALSE(another.sent(gradients).equal(first));
}

TEST(TopK, SendsTheLargest) {
  const at::Tensor gradients = at::tensor({1.0F, -5.0F, 2.0F, 0.5F, 4.0F});
  const Alone alone{keep_top_k(0.4)};
  EXPECT_TRUE(alone.sent(gradients).equal(at::tensor({0.0F, -5.0F, 0.0F, 0.0F, 4.0F})));
  EXPECT_TRUE(alone.sent(at::zeros({5})).equal(at::tensor({1.0F, 0.0F, 2.0F, 0.0F, 0.0F})));
  EXPECT_TRUE(Alone{keep_top_k(1)}.sent(gradients).equal(gradients));
}

TEST(RandomK, SendsEveryPlaceEquallyOften) {
  const Alone alone{keep_random_k(0.1, 11)};
  at::Tensor times = at::zeros({100});
  const at::Tensor ones = at::ones({100});
  for (int i = 0; i < 2000; ++i) times += alone.sent(ones).ne(0);
  EXPECT_EQ(times.sum().item<double>(), 2000 * 10);
  EXPECT_GT(times.min().item<double>(), 130);
  EXPECT_LT(times.max().item<double>(), 270);
}

// Of a bucket so small that its share is one value.
TEST(RandomK, SendsOneOfFew) {
  const at::Tensor gradients = at::tensor({1.0F, -5.0F, 2.0F});
  for (const std::int64_t count : {3, 1}) {
    const at::Tensor part = gradients.narrow(0, 0, count);
    const at::Tensor sent = Alone{keep_random_k(0.01, 5)}.sent(part);
    EXPECT_EQ(sent.ne(0).sum().item<std::int64_t>(), 1);
    EXPECT_TRUE(at::where(sent.ne(0), part, sent).equal(sent));
  }
}

TEST(PowerSgd, IsExactAtFullRank) {
  const std::vector<BucketPart> parts = {{0, {12, 7}}, {96, {5, 2, 3}}, {128, {10}}};
  const at::Tensor gradients = normal({144}, 1, at::kDouble);
  const Alone alone{compress_by_power_sgd({.rank = 12, .small = PowerSgd::Small::kFactorised}),
                    parts};
  const at::Tensor sent = alone.sent(gradients);
  for (const BucketPart& part : parts) {
    const auto of = [&](const at::Tensor& all) { return all.narrow(0, part.begin, part.count()); };
    EXPECT_LT((of(sent) - of(gradients)).abs().max().item<double>(), 1e-10);
    EXPECT_LT(of(alone.memory(gradients).error).abs().max().item<double>(), 1e-10);
  }
  EXPECT_EQ(alone.memory(gradients).factors.size(), 3U);
  EXPECT_FALSE(alone.memory(gradients).factors[2].defined());
}

TEST(PowerSgd, KeepsAMatrixOfItsRank) {
  const at::Tensor three = normal({40, 3}, 1, at::kDouble).mm(normal({3, 25}, 2, at::kDouble));
  const at::Tensor gradients = three.reshape({-1});
  const auto relative = [&](std::int64_t rank) {
    const Alone alone{compress_by_power_sgd({.rank = rank}), {{0, {40, 25}}}};
    return ((alone.sent(gradients) - gradients).norm() / gradients.norm()).item<double>();
  };
  EXPECT_LT(relative(3), 1e-10);
  EXPECT_LT(relative(5), 1e-10);
  EXPECT_GT(relative(2), 1e-2);
}

// With the last factor to start from, the same matrix is approximated ever better.
TEST(PowerSgd, StartsFromTheLastFactor) {
  const at::Tensor gradients = normal({1000}, 1, at::kDouble);
  const Alone alone{compress_by_power_sgd({.rank = 2}), {{0, {40, 25}}}};
  const auto error = [&] {
    alone.memory(gradients).error.zero_();
    return (alone.sent(gradients) - gradients).norm().item<double>();
  };
  const double first = error();
  for (int i = 0; i < 60; ++i) (void)error();
  const auto values = std::get<1>(at::linalg_svd(gradients.view({40, 25})));
  const double best = values.narrow(0, 2, 23).norm().item<double>();
  EXPECT_NEAR(error(), best, 1e-3 * best);
  EXPECT_GT(first, best * 1.01);
}

TEST(PowerSgd, RecoversFromGradientsOfZero) {
  const at::Tensor gradients = at::outer(normal({40}, 1), normal({25}, 2)).reshape({-1});
  const Alone alone{compress_by_power_sgd({.rank = 2}), {{0, {40, 25}}}};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(alone.sent(at::zeros({1000})).norm().item<double>(), 0);
  at::Tensor sum = at::zeros({1000});
  for (int i = 0; i < 6; ++i) sum += alone.sent(gradients);
  EXPECT_LT(((sum / 6 - gradients).norm() / gradients.norm()).item<double>(), 1e-4);
}

TEST(PowerSgd, SendsSmallMatricesWhole) {
  const at::Tensor gradients = normal({16}, 1);
  const Alone alone{compress_by_power_sgd({.rank = 2}), {{0, {4, 4}}}};
  EXPECT_TRUE(alone.sent(gradients).equal(gradients));
}

TEST(CompressKinds, MakeTheirCompressors) {
  const at::Tensor gradients = normal({kElements}, 1);
  for (const CompressKind* const kind : CompressKind::all()) {
    const Hook hook = kind->make(kind->defaults(), 1);
    EXPECT_EQ(hook == nullptr, kind == &CompressKind::default_kind()) << kind->name();
    if (!hook) continue;
    EXPECT_FALSE((Alone{hook, {{0, {40, 25}}}}.sent(gradients).equal(gradients))) << kind->name();
    EXPECT_EQ(kind->is_elementwise(), kind->name() == "bf16" || kind->name() == "fp16");
  }
}

}  // namespace
}  // namespace troika
