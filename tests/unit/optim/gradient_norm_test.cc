#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/chunks.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/parameter_sums.h>
#include <troika/optim/square_sum.h>

#include <array>
#include <cmath>
#include <limits>

#include "arena_fixture.h"
#include "support/memory_group.h"

namespace troika {
namespace {

using namespace testing_support;

TEST(SquareSum, AddsInItsDocumentedOrder) {
  const RandomStream stream(stream_key(1, "squares"));
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 100U, 8191U, 8192U}) {
    std::vector<float> single(count);
    std::array<double, 16> lanes{};
    for (std::size_t i = 0; i < count; ++i) {
      single[i] = static_cast<float>(stream.normal(i));
      lanes[i % 16] += static_cast<double>(single[i]) * static_cast<double>(single[i]);
    }
    for (std::size_t width = 8; width > 0; width /= 2) {
      for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    const auto elements = static_cast<std::int64_t>(count);
    EXPECT_EQ(square_sum(single.data(), elements), lanes[0]) << count;
    const std::vector<double> wide(single.begin(), single.end());
    EXPECT_EQ(square_sum(wide.data(), elements), lanes[0]) << count;
  }
}

TEST(Chunks, CoverEveryElementOnceAndCrossNoParameter) {
  const Arena arena = arena_of(mixed_specs(), kFp32);
  std::vector<std::int64_t> covered(arena.parameters().size(), 0);
  for (const Chunk& chunk : chunks_of(arena)) {
    EXPECT_EQ(chunk.begin, covered[chunk.parameter]);
    EXPECT_GT(chunk.count, 0);
    EXPECT_LE(chunk.count, kChunkElements);
    covered[chunk.parameter] += chunk.count;
  }
  for (std::size_t i = 0; i < covered.size(); ++i) {
    EXPECT_EQ(covered[i], arena.parameters()[i]->master().numel());
  }
}

TEST(GlobalNorm, IsTheNormOfAllGradients) {
  for (const NumericTypes types : {kFp32, kFp64}) {
    Arena arena = arena_of(mixed_specs(), types);
    give_gradients(arena, 1);
    double sum = 0;
    for (const auto& p : arena.parameters()) {
      sum += p->gradient().to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(global_norm(arena), std::sqrt(sum), 1e-13 * std::sqrt(sum));
  }
}

TEST(GlobalNorm, DependsNeitherOnThreadsNorOnTheOrderInMemory) {
  std::vector<ParameterSpec> specs = mixed_specs();
  Arena arena = arena_of(specs, kFp32);
  give_gradients(arena, 1);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double expected = global_norm(arena);
  at::set_num_threads(3);
  EXPECT_EQ(global_norm(arena), expected);
  at::set_num_threads(threads);

  for (ParameterSpec& spec : specs) spec.unit = 2 - spec.unit;
  std::ranges::reverse(specs);
  Arena other = arena_of(specs, kFp32);
  give_gradients(other, 1);
  EXPECT_EQ(global_norm(other), expected);
}

TEST(GlobalNorm, CountsATiedParameterOnce) {
  std::vector specs = {spec_of("embed", {1, 2}), spec_of("head", {1, 2})};
  specs[1].tied_to = "embed";
  Arena arena = arena_of(specs, kFp32);
  arena.parameter("embed").add_gradient(at::tensor({1.0F, 2.0F}).view({1, 2}));
  arena.parameter("head").add_gradient(at::tensor({2.0F, 2.0F}).view({1, 2}));
  EXPECT_EQ(global_norm(arena), 5);
}

// What tensor ranks have alike counts once, their slices all; on the host as on a device.
TEST(GlobalNorm, IsThatOfTheWholeModelOnTensorRanks) {
  for (const int ranks : {1, 2}) {
    test::run_members(ranks, [ranks](const Group& tensor) {
      const std::int64_t rows = 4 / ranks, first = rows * tensor.rank();
      std::vector specs = {spec_of("sliced", {4, 3}), spec_of("alike", {5})};
      specs[0].slice = Slice{.dim = 0, .begin = first, .end = first + rows};
      Arena arena = arena_of(specs, kFp64);
      arena.parameter("sliced").add_gradient(at::full({rows, 3}, 1.0 + tensor.rank(), at::kDouble));
      arena.parameter("alike").add_gradient(at::full({5}, 3.0, at::kDouble));
      const ParameterSums sums(arena, {.tensor = tensor});
      const double sliced = ranks == 1 ? 12 * 1.0 : 6 * 1.0 + 6 * 4.0;
      const double expected = std::sqrt(sliced + 5 * 9.0);
      EXPECT_NEAR(global_norm(arena, sums), expected, 1e-14);
      EXPECT_NEAR(norm_on_device(arena, sums).item<double>(), expected, 1e-14);
    });
  }
}

TEST(GlobalNorm, IsFiniteExactlyIfTheGradientsAre) {
  Arena arena = arena_of(mixed_specs(), kFp32);
  give_gradients(arena, 1, 1e37);  // squares are beyond fp32
  EXPECT_TRUE(std::isfinite(global_norm(arena)));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    give_gradients(arena, 1);
    arena.parameter("model.layer.bias").gradient()[30].fill_(bad);
    EXPECT_FALSE(std::isfinite(global_norm(arena)));
  }
}

TEST(GlobalNorm, RefusesAnUnclaimedGradient) {
  Arena arena = arena_of(mixed_specs(), kFp32);
  try {
    (void)global_norm(arena);
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("model.embed.weight"));
  }
}

TEST(ClipFactor, ScalesDownToTheLimitOnly) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1);
  EXPECT_EQ(clip_factor(0, 1.0), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1.0), 1 / (4 + 1e-6));
  EXPECT_LT(clip_factor(1, 1.0), 1);
  EXPECT_EQ(clip_factor(1e9, 0), 1);
  EXPECT_THROW((void)clip_factor(std::numeric_limits<double>::infinity(), 1), InternalError);
}

}  // namespace
}  // namespace troika
