#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/param/arena.h>

#include <cstdint>

namespace troika {
namespace {

constexpr NumericTypes kSingle{at::kFloat, at::kFloat};
constexpr NumericTypes kMixed{at::kBFloat16, at::kFloat};

ParameterSpec spec_of(std::string name, std::vector<std::int64_t> shape, int unit = 0) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.unit = unit;
  spec.initializer = Initializer::normal(0.02);
  return spec;
}

ParameterSpec tied(std::string name, std::vector<std::int64_t> shape, std::string to) {
  ParameterSpec spec = spec_of(std::move(name), std::move(shape));
  spec.tied_to = std::move(to);
  return spec;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no error";
}

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0;
}

TEST(Arena, LaysOutUnitsInOrderWithAlignedSlots) {
  const std::vector specs = {spec_of("late", {5, 3}, 2), spec_of("first", {7}, 0),
                             spec_of("second", {33}, 0), spec_of("scalar", {}, 2)};
  for (const NumericTypes types : {kSingle, kMixed, NumericTypes{at::kDouble, at::kDouble}}) {
    const Arena arena(specs, types, Group());
    std::vector<std::string> names;
    const char* end = nullptr;
    for (const auto& parameter : arena.parameters()) {
      names.push_back(parameter->spec().name);
      EXPECT_TRUE(is_aligned(parameter->master()));
      EXPECT_TRUE(is_aligned(parameter->value()));
      EXPECT_TRUE(is_aligned(parameter->gradient()));
      EXPECT_EQ(parameter->master().scalar_type(), types.master);
      EXPECT_EQ(parameter->gradient().scalar_type(), types.master);
      EXPECT_EQ(parameter->value().scalar_type(), types.compute);
      const auto* begin = static_cast<const char*>(parameter->master().const_data_ptr());
      EXPECT_GE(begin, end) << parameter->spec().name;
      end = begin + parameter->master().nbytes();
    }
    EXPECT_THAT(names, testing::ElementsAre("first", "second", "late", "scalar"));
    EXPECT_EQ(arena.units(), 3);
    EXPECT_EQ(arena.parameter_count(), 15 + 7 + 33 + 1);
  }
}

TEST(Arena, MastersServeAsValuesInFullPrecision) {
  const std::vector specs = {spec_of("w", {4})};
  const Arena single(specs, kSingle, Group());
  EXPECT_EQ(single.parameter("w").value().const_data_ptr(),
            single.parameter("w").master().const_data_ptr());
  const Arena mixed(specs, kMixed, Group());
  EXPECT_NE(mixed.parameter("w").value().const_data_ptr(),
            mixed.parameter("w").master().const_data_ptr());
}

TEST(Arena, FlatViewsCoverTheirUnitsAndShareMemory) {
  const std::vector specs = {spec_of("a", {40}, 0), spec_of("b", {3}, 1), spec_of("c", {5}, 3)};
  const Arena arena(specs, kSingle, Group());
  ASSERT_EQ(arena.units(), 4);
  EXPECT_EQ(arena.gradients(2, 3).numel(), 0);  // a unit without parameters
  EXPECT_EQ(arena.gradients(0, 4).numel(),
            arena.gradients(0, 1).numel() + arena.gradients(1, 4).numel());

  arena.parameter("b").add_gradient(at::ones({3}));
  EXPECT_EQ(arena.gradients(1, 2).sum().item<float>(), 3);  // padding is zero
  EXPECT_EQ(arena.gradients(0, 1).sum().item<float>(), 0);
  arena.masters(3, 4).fill_(2);
  EXPECT_EQ(arena.parameter("c").master().sum().item<float>(), 10);
}

TEST(Arena, TiedNamesGiveTheParameterTheyAreTiedTo) {
  // Several of them, in an order in which no prefix of the names is sorted.
  const std::vector specs = {tied("z.head", {4, 2}, "m.embed"), tied("a.head", {4, 2}, "n.embed"),
                             spec_of("n.embed", {4, 2}, 1),     spec_of("m.embed", {4, 2}),
                             tied("k.head", {4, 2}, "m.embed"), tied("b.head", {4, 2}, "n.embed")};
  const Arena arena(specs, kSingle, Group());
  EXPECT_EQ(arena.parameters().size(), 2U);
  EXPECT_EQ(&arena.parameter("z.head"), &arena.parameter("m.embed"));
  EXPECT_EQ(&arena.parameter("k.head"), &arena.parameter("m.embed"));
  EXPECT_EQ(&arena.parameter("a.head"), &arena.parameter("n.embed"));
  EXPECT_EQ(&arena.parameter("b.head"), &arena.parameter("n.embed"));
  EXPECT_EQ(arena.parameter_count(), 16);
}

TEST(Arena, NamesTheCulprit) {
  const auto build = [](std::vector<ParameterSpec> specs) {
    return message_of([&] { const Arena arena(specs, kSingle, Group()); });
  };
  EXPECT_THAT(build({spec_of("w", {2}), spec_of("w", {3})}), testing::HasSubstr("'w'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("v", {2}, "absent")}), testing::HasSubstr("'absent'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("v", {3}, "w")}), testing::HasSubstr("'v'"));
  EXPECT_THAT(build({spec_of("w", {2}), tied("w", {2}, "w")}), testing::HasSubstr("'w'"));
  const std::vector specs = {spec_of("w", {2})};
  const Arena arena(specs, kSingle, Group());
  EXPECT_THAT(message_of([&] { (void)arena.parameter("x"); }), testing::HasSubstr("'x'"));
}

TEST(Arena, HoldsNothingWithoutParameters) {
  const Arena arena({}, kSingle, Group());
  EXPECT_EQ(arena.units(), 0);
  EXPECT_EQ(arena.parameter_count(), 0);
  EXPECT_EQ(arena.gradients(0, 0).numel(), 0);
}

TEST(Arena, StateStoragesAreZeroAndLaidOutLikeMasters) {
  const std::vector specs = {spec_of("a", {40}, 0), spec_of("b", {3, 2}, 1)};
  const Arena arena(specs, kMixed, Group());
  const at::Tensor state = arena.allocate_like_masters();
  EXPECT_EQ(state.scalar_type(), at::kFloat);
  EXPECT_EQ(state.numel(), arena.masters(0, 2).numel());
  EXPECT_EQ(state.count_nonzero().item<std::int64_t>(), 0);
  const at::Tensor view = arena.view_of(arena.parameter("b"), state);
  EXPECT_EQ(view.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(is_aligned(view));
  view.fill_(1);
  EXPECT_EQ(state.sum().item<float>(), 6);

  const Arena other(specs, kMixed, Group());
  EXPECT_THROW((void)arena.view_of(other.parameter("b"), state), InternalError);
}

TEST(Arena, PublishesMastersRoundedToNearest) {
  const std::vector specs = {spec_of("w", {100})};
  Arena arena(specs, kMixed, Group());
  arena.initialize(7);
  const Parameter& w = arena.parameter("w");
  EXPECT_GT(w.master().abs().max().item<float>(), 0);
  EXPECT_TRUE(w.value().equal(w.master().to(at::kBFloat16)));
  w.master().mul_(3);
  arena.publish();
  EXPECT_TRUE(w.value().equal(w.master().to(at::kBFloat16)));
}

TEST(Arena, ANewStepReleasesEveryGradient) {
  const std::vector specs = {spec_of("a", {2}), spec_of("b", {2})};
  Arena arena(specs, kSingle, Group());
  arena.parameter("a").claim_zeroed();
  arena.release_gradients();
  EXPECT_FALSE(arena.parameter("a").claimed());
  EXPECT_FALSE(arena.parameter("b").claimed());
}

}  // namespace
}  // namespace troika
