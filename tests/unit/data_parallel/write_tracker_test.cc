#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/write_tracker.h>

#include <ATen/ATen.h>

namespace troika::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<GradientSlot> two_slots() {
  const at::Tensor a = at::ones({3}), b = at::ones({2, 2});
  a.requires_grad_(true);
  b.requires_grad_(true);
  return make_slots(std::vector<NamedTensor>{{"a", a}, {"frozen", at::ones({1})}, {"b", b}});
}

TEST(WriteTracker, CountsWhatAutogradCounts) {
  std::vector<GradientSlot> slots = two_slots();
  WriteTracker tracker(slots, nullptr);
  const std::vector<std::uint32_t> before = tracker.versions();
  EXPECT_NO_THROW(tracker.throw_if_written(before));
  {
    const at::NoGradGuard no_grad;
    slots[1].parameter.mul_(2).add_(1);
  }
  EXPECT_EQ(tracker.count(), 2U);
  EXPECT_FALSE(tracker.moved());
  EXPECT_THAT(tracker.writes(), ElementsAre(0, 2));
  try {
    tracker.throw_if_written(before);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter 'b' was written to between"));
  }
  tracker.reset();
  EXPECT_EQ(tracker.count(), 0U);
  EXPECT_THAT(tracker.writes(), ElementsAre(0, 0));
}

TEST(WriteTracker, FindsParametersWithOtherMemory) {
  std::vector<GradientSlot> slots = two_slots();
  std::vector<std::string> moved;
  WriteTracker tracker(slots, [&](GradientSlot& slot) { moved.push_back(slot.name); });
  EXPECT_THAT(moved, ElementsAre());
  slots[0].parameter.set_data(at::zeros({3}));
  tracker.find_moves();
  tracker.find_moves();  // it is known by now
  EXPECT_THAT(moved, ElementsAre("a"));
  EXPECT_TRUE(tracker.moved());
  EXPECT_EQ(tracker.writes()[0], 1U);
  tracker.reset();
  EXPECT_FALSE(tracker.moved());
}

TEST(WriteTracker, NamesAParameterOfAnotherShape) {
  std::vector<GradientSlot> slots = two_slots();
  WriteTracker tracker(slots, nullptr);
  slots[1].parameter.set_data(at::zeros({5}));
  try {
    tracker.find_moves();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter 'b' has changed its dtype, device or shape"));
  }
}

}  // namespace
}  // namespace troika::detail
