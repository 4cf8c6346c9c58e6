#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/param/arena.h>

namespace troika {
namespace {

ParameterSpec spec_of(Initializer initializer, std::vector<std::int64_t> shape = {6, 10, 7}) {
  ParameterSpec spec;
  spec.name = "model.w";
  spec.shape = std::move(shape);
  spec.initializer = initializer;
  return spec;
}

TEST(InitialValues, DoNotDependOnHowAParameterIsCut) {
  for (const Initializer& initializer : {Initializer::normal(0.02), Initializer::uniform(0.1)}) {
    ParameterSpec spec = spec_of(initializer);
    const at::Tensor whole = initial_values(spec, 5);
    ASSERT_EQ(whole.sizes(), at::IntArrayRef({6, 10, 7}));
    for (int dim = 0; dim < 3; ++dim) {
      const std::int64_t extent = spec.shape[static_cast<std::size_t>(dim)];
      std::vector<at::Tensor> parts;
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                       {1, 1},
                                       {1, 5},
                                       {5, extent}}) {  // uneven, one of them empty
        spec.slice = Slice{dim, begin, end};
        parts.push_back(initial_values(spec, 5));
        EXPECT_EQ(parts.back().size(dim), end - begin);
        EXPECT_EQ(parts.back().numel(), spec.local_count());
      }
      EXPECT_TRUE(at::cat(parts, dim).equal(whole)) << "cut along " << dim;
    }
  }
}

TEST(InitialValues, DoNotDependOnTheNumberOfThreads) {
  const ParameterSpec spec = spec_of(Initializer::normal(1), {300, 101});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = initial_values(spec, 5);
  at::set_num_threads(4);
  const at::Tensor together = initial_values(spec, 5);
  at::set_num_threads(threads);
  EXPECT_TRUE(alone.equal(together));
}

TEST(InitialValues, FollowTheirDistribution) {
  const at::Tensor normal = initial_values(spec_of(Initializer::normal(0.02), {200, 500}), 1);
  EXPECT_NEAR(normal.mean().item<double>(), 0, 3e-4);
  EXPECT_NEAR(normal.std().item<double>(), 0.02, 3e-4);
  const at::Tensor uniform = initial_values(spec_of(Initializer::uniform(0.1), {200, 500}), 1);
  EXPECT_NEAR(uniform.mean().item<double>(), 0, 1e-3);
  EXPECT_NEAR(uniform.abs().max().item<double>(), 0.1, 1e-4);
  EXPECT_LE(uniform.abs().max().item<double>(), 0.1);
  const at::Tensor ones = initial_values(spec_of(Initializer::constant(1), {3}), 1);
  EXPECT_TRUE(ones.equal(at::ones({3}, at::kDouble)));
}

TEST(InitialValues, DifferBySeedAndName) {
  ParameterSpec spec = spec_of(Initializer::normal(1));
  const at::Tensor values = initial_values(spec, 5);
  EXPECT_TRUE(initial_values(spec, 5).equal(values));
  EXPECT_FALSE(initial_values(spec, 6).equal(values));
  spec.name = "model.v";
  EXPECT_FALSE(initial_values(spec, 5).equal(values));
}

TEST(InitialValues, ReachTheMastersOfASlicedArena) {
  ParameterSpec spec = spec_of(Initializer::normal(0.02), {8, 4});
  const at::Tensor whole = initial_values(spec, 9).to(at::kFloat);
  spec.slice = Slice{0, 3, 8};
  Arena arena(std::span(&spec, 1), {at::kFloat, at::kFloat}, Group());
  arena.initialize(9);
  EXPECT_TRUE(arena.parameter("model.w").master().equal(whole.narrow(0, 3, 5)));
}

TEST(ParameterSpec, CountsWhatIsHeld) {
  ParameterSpec spec = spec_of(Initializer::constant(0), {6, 10});
  EXPECT_EQ(spec.local_shape(), spec.shape);
  EXPECT_EQ(spec.local_count(), 60);
  spec.slice = Slice{1, 2, 5};
  EXPECT_EQ(spec.local_shape(), (std::vector<std::int64_t>{6, 3}));
  EXPECT_EQ(spec.local_count(), 18);
  EXPECT_EQ(spec.global_count(), 60);
}

}  // namespace
}  // namespace troika
