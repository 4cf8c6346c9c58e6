// Alone in its group: the order in which buckets start, and the buffers that they borrow. Sums over
// ranks are in tests/ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/bucket_reducer.h>

#include <string>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kElements = 8;

// Writes down what it is told.
class RecordingFront final : public BucketReducer::Front {
 public:
  void place_gradients(std::size_t bucket, const at::Tensor& gradients) override {
    events.push_back((gradients.defined() ? "place " : "take ") + std::to_string(bucket));
  }
  void complete_gradients(std::size_t bucket) override {
    events.push_back("complete " + std::to_string(bucket));
  }
  [[nodiscard]] std::vector<std::string> take_events() { return std::exchange(events, {}); }

  std::vector<std::string> events;
};

ReducedBucket whole_bucket() {
  return {.label = "bucket",
          .dtype = at::kFloat,
          .elements = kElements,
          .gradients = at::ones({kElements})};
}

// As at ZeRO stage 2, on the only rank.
ReducedBucket borrowing_bucket() {
  return {.label = "bucket",
          .dtype = at::kFloat,
          .elements = kElements,
          .counts = {kElements},
          .shard = at::zeros({kElements})};
}

// One reduction of each bucket, after so many contributions.
std::vector<BucketReducer::Expected> once(const std::vector<int>& contributions) {
  std::vector<BucketReducer::Expected> expected;
  for (const int count : contributions) expected.push_back({.contributions = count});
  return expected;
}

TEST(BucketReducer, StartsBucketsInTheirOrderOnceAllContributionsAreThere) {
  RecordingFront front;
  BucketReducer reducer({whole_bucket(), whole_bucket(), whole_bucket()}, front, {});
  for (int step = 0; step < 2; ++step) {
    reducer.begin_step(once({1, 2, 1}));
    const auto events_after = [&](std::size_t bucket) {
      reducer.add_contribution(bucket);
      reducer.start_complete();
      return front.take_events();
    };
    EXPECT_THAT(events_after(2), IsEmpty());
    EXPECT_THAT(events_after(1), IsEmpty());
    EXPECT_THAT(events_after(0), ElementsAre("complete 0"));
    EXPECT_TRUE(reducer.is_started(0));
    EXPECT_FALSE(reducer.all_started());
    EXPECT_THAT(events_after(1), ElementsAre("complete 1", "complete 2"));
    EXPECT_TRUE(reducer.all_started());
    reducer.wait();
    EXPECT_THAT(front.take_events(), IsEmpty());
  }
  EXPECT_EQ(reducer.buffers(), 0U);
}

TEST(BucketReducer, StartsWhatHasGotNoContribution) {
  RecordingFront front;
  BucketReducer reducer({whole_bucket(), whole_bucket()}, front, {});
  reducer.begin_step(once({1, 1}));
  reducer.add_contribution(1);
  reducer.start_complete();
  EXPECT_THAT(front.take_events(), IsEmpty());
  reducer.start_rest();
  EXPECT_THAT(front.take_events(), ElementsAre("complete 0", "complete 1"));
}

TEST(BucketReducer, LendsMemoryUntilTheReductionHasEnded) {
  RecordingFront front;
  BucketReducer reducer({borrowing_bucket(), borrowing_bucket(), borrowing_bucket()}, front, {});
  reducer.begin_step(once({1, 1, 1}));
  for (std::size_t i = 0; i < 3; ++i) {
    reducer.borrow_memory(i);
    reducer.borrow_memory(i);  // has it already
    reducer.buckets()[i].gradients.fill_(static_cast<double>(i) + 1);
    reducer.add_contribution(i);
    reducer.start_complete();
  }
  // The last one that is under way keeps its buffer.
  EXPECT_THAT(front.take_events(), ElementsAre("place 0", "complete 0", "place 1", "complete 1",
                                               "take 0", "place 2", "complete 2"));
  reducer.wait();
  EXPECT_THAT(front.take_events(), ElementsAre("take 1", "take 2"));
  EXPECT_LE(reducer.buffers(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(reducer.buckets()[i].gradients.defined());
    EXPECT_TRUE(
        reducer.buckets()[i].sums().equal(at::full({kElements}, static_cast<double>(i) + 1)));
  }
}

TEST(BucketReducer, KeepsWhatIsBorrowedFromStepToStepUntilItIsDropped) {
  RecordingFront front;
  BucketReducer reducer({borrowing_bucket()}, front, {});
  reducer.begin_step(once({1}));
  reducer.borrow_memory(0);
  reducer.abort();  // nothing has been started
  reducer.begin_step(once({1}));
  reducer.borrow_memory(0);
  EXPECT_THAT(front.take_events(), ElementsAre("place 0"));
  reducer.drop_gradients();
  EXPECT_THAT(front.take_events(), ElementsAre("take 0"));
}

TEST(BucketReducer, RefusesContributionsToWhatHasBeenReduced) {
  RecordingFront front;
  BucketReducer reducer({borrowing_bucket()}, front, {});
  reducer.begin_step(once({1}));
  reducer.add_contribution(0);
  EXPECT_THROW(reducer.add_contribution(0), InternalError);
  reducer.start_complete();
  reducer.wait();
  EXPECT_THROW(reducer.borrow_memory(0), InternalError);
}

// A microbatch contributes 1, 10 and 100 to the second bucket; the first is reduced once, at the
// end.
TEST(BucketReducer, AddsUpTheReductionsOfAStep) {
  RecordingFront front;
  BucketReducer reducer({borrowing_bucket(), borrowing_bucket()}, front, {});
  for (int step = 0; step < 2; ++step) {  // what the step before has left is overwritten
    reducer.begin_step(std::vector<BucketReducer::Expected>{{4, 1}, {2, 3}});
    for (const double value : {1.0, 10.0, 100.0}) {
      reducer.borrow_memory(0);
      reducer.buckets()[0].gradients.fill_(7);
      reducer.add_contribution(0);
      reducer.borrow_memory(1);
      reducer.buckets()[1].gradients.fill_(value);
      reducer.add_contribution(1);
      reducer.start_complete();
      EXPECT_FALSE(reducer.is_started(1));
      reducer.add_contribution(1);
      reducer.start_complete();
      EXPECT_EQ(reducer.is_started(1), value == 100);
      EXPECT_FALSE(reducer.is_started(0));
    }
    reducer.start_rest();
    reducer.wait();
    EXPECT_TRUE(reducer.buckets()[0].sums().equal(at::full({kElements}, 7.0)));
    EXPECT_TRUE(reducer.buckets()[1].sums().equal(at::full({kElements}, 111.0)));
    EXPECT_THAT(front.take_events(),
                ElementsAre("place 0", "place 1", "complete 1", "take 1", "place 1", "complete 1",
                            "take 1", "place 1", "complete 1", "complete 0", "take 0", "take 1"));
  }
  EXPECT_LE(reducer.buffers(), 3U);
  // A step that ends before a bucket has all of its reductions.
  reducer.begin_step(std::vector<BucketReducer::Expected>{{1, 1}, {1, 2}});
  reducer.add_contribution(1);
  reducer.start_complete();
  EXPECT_THROW(reducer.start_rest(), InternalError);
  reducer.abort();
}

// Doubles gradients in place of reducing them.
class DoublingHook final : public BucketHook {
 public:
  Work start(const GradientBucket& bucket) override {
    labels.emplace_back(bucket.call.label);
    return {};
  }
  void finish(const GradientBucket& bucket) override { bucket.gradients.mul_(2); }

  std::vector<std::string> labels;
};

TEST(BucketReducer, LeavesTheReductionToAHook) {
  RecordingFront front;
  const auto hook = std::make_shared<DoublingHook>();
  BucketReducer reducer({whole_bucket()}, front, {.hook = hook});
  reducer.label_with(", microbatch 3");
  reducer.begin_step(once({0}));
  reducer.start_rest();
  reducer.wait();
  EXPECT_THAT(hook->labels, ElementsAre("bucket, microbatch 3"));
  EXPECT_EQ(reducer.label_of(0, ", tied"), "bucket, tied, microbatch 3");
  EXPECT_TRUE(reducer.buckets()[0].sums().equal(at::full({kElements}, 2.0)));
}

}  // namespace
}  // namespace troika
