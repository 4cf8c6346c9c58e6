#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/gradient_buckets.h>

#include <ATen/ATen.h>

namespace troika::detail {
namespace {

using testing::ElementsAre;

std::vector<GradientSlot> slots_of(const std::vector<at::ScalarType>& dtypes) {
  std::vector<NamedTensor> parameters;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    const at::Tensor parameter = at::ones({10}, at::TensorOptions(dtypes[i]));
    parameters.push_back({std::to_string(i), parameter.requires_grad_(true)});
  }
  return make_slots(parameters);
}

TEST(GradientBuckets, ClosesABucketOnceItIsLargeEnough) {
  const auto slots = slots_of({at::kFloat, at::kFloat, at::kFloat, at::kFloat});
  const std::vector<std::size_t> order = {3, 1, 2, 0};
  EXPECT_THAT(GradientBuckets::plan(slots, order, {.first_bytes = 1, .bytes = 80}),
              ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(0)));
}

TEST(GradientBuckets, KeepsDtypesApartInTheOrderInWhichBucketsAreComplete) {
  const auto slots = slots_of({at::kFloat, at::kDouble, at::kFloat, at::kDouble});
  const std::vector<std::size_t> order = {0, 1, 3, 2};
  EXPECT_THAT(GradientBuckets::plan(slots, order, {}),
              ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
}

TEST(GradientBuckets, HaveFactsInThePaddingOfTheLastOne) {
  auto slots = slots_of({at::kFloat, at::kFloat});
  const std::vector<std::size_t> order = {1, 0};
  GradientBuckets buckets(slots, order, Group(), {.sizes = {.first_bytes = 1, .bytes = 1}});
  ASSERT_EQ(buckets.gradients().size(), 2U);
  EXPECT_EQ(buckets.gradients()[0].elements, 16);  // 64 bytes
  EXPECT_EQ(buckets.gradients()[1].elements, 32);
  EXPECT_FALSE(buckets.separate_facts().defined());
  for (const GradientSlot& slot : slots) slot.view.fill_(7);
  buckets.facts().write({.weight = 3});
  EXPECT_EQ(buckets.gradients()[1].gradients[16].item<float>(), 3);
  EXPECT_EQ(slots[0].view.sum().item<float>(), 70);
}

TEST(GradientBuckets, BorrowMemoryForWholeGradientsAtStage2) {
  auto slots = slots_of({at::kFloat});
  const std::vector<std::size_t> order = {0};
  using Facts = GradientBuckets::Options::Facts;
  GradientBuckets buckets(slots, order, Group(), {.stage = 2, .facts = Facts::kSeparate});
  EXPECT_TRUE(buckets.separate_facts().defined());
  EXPECT_FALSE(buckets.gradients()[0].gradients.defined());
  EXPECT_FALSE(slots[0].view.defined());
  EXPECT_THAT(buckets.gradients()[0].counts, ElementsAre(64));
  EXPECT_EQ(slots[0].value.const_data_ptr(), buckets.values()[0].whole.const_data_ptr());
  const std::size_t kept = buckets.values()[0].whole.nbytes() +
                           buckets.gradients()[0].shard.nbytes() + FactsMemory::kBytes;
  EXPECT_EQ(buckets.bytes(), static_cast<std::int64_t>(kept)) << "whole gradients are borrowed";

  const at::Tensor memory = at::zeros({64});
  buckets.set_views(0, memory);
  EXPECT_EQ(slots[0].view.const_data_ptr(), memory.const_data_ptr());
  slots[0].parameter.mutable_grad() = slots[0].view;
  buckets.set_views(0, {});
  EXPECT_FALSE(slots[0].parameter.grad().defined());
}

}  // namespace
}  // namespace troika::detail
