#include <ATen/ATen.h>
#include <troika/data/sources/table/group_cache.h>
#include <unit/data/support.h>

#include <condition_variable>
#include <thread>

namespace troika {
namespace {

constexpr std::int64_t kGroupBytes = 80;

DecodedGroup group_of(std::size_t number) {
  DecodedGroup group;
  group.tensors = {at::full({10, 1}, static_cast<double>(number), at::kDouble)};
  return group;
}

// A group that cannot be decoded while it is shut.
class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Waits at the gate.
  void pass() {
    std::unique_lock lock(mutex_);
    is_waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  // Waits until a thread does.
  void wait_for_someone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_waiting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false, is_waiting_ = false;
};

TEST(GroupCache, KeepsTheLatestThatFit) {
  GroupCache cache(2 * kGroupBytes, group_of);
  for (const std::size_t group : {0U, 1U, 0U, 2U, 0U}) {
    EXPECT_EQ(cache.get(group)->tensors[0][0].item<double>(), static_cast<double>(group));
  }
  EXPECT_EQ(cache.decoded(), 3);
  (void)cache.get(1);
  EXPECT_EQ(cache.decoded(), 4);
}

TEST(GroupCache, FindsAGroupAmongThousandsWithoutASearch) {
  constexpr std::size_t kMany = 10'000;
  GroupCache cache(kMany * kGroupBytes, group_of);
  for (std::size_t group = 0; group < kMany; ++group) (void)cache.get(group);
  EXPECT_LE(cache.longest_search(), 8);
  for (std::size_t group = 0; group < kMany; ++group) (void)cache.get(group);
  EXPECT_EQ(cache.decoded(), kMany);
}

TEST(GroupCache, DecodesAheadWithoutHoldingUpTheReader) {
  Gate gate;
  GroupCache cache(4 * kGroupBytes, [&](std::size_t group) {
    if (group == 1) gate.pass();
    return group_of(group);
  });
  cache.prefetch({1, 2});
  gate.wait_for_someone();
  EXPECT_EQ(cache.get(0)->tensors[0].size(0), 10);  // meanwhile
  EXPECT_EQ(cache.decoded(), 1);
  std::jthread reader([&] { EXPECT_EQ(cache.get(1)->tensors[0][0].item<double>(), 1); });
  gate.open();
  reader.join();
  (void)cache.get(2);
  EXPECT_EQ(cache.decoded(), 3);  // each by one thread
}

TEST(GroupCache, LeavesErrorsToTheReader) {
  GroupCache cache(4 * kGroupBytes, [](std::size_t group) -> DecodedGroup {
    if (group == 1) throw DataError("the group 1 is damaged");
    return group_of(group);
  });
  cache.prefetch({1, 2});
  EXPECT_EQ(message_of([&] { (void)cache.get(1); }), "the group 1 is damaged");
  EXPECT_EQ(message_of([&] { (void)cache.get(1); }), "the group 1 is damaged");
  EXPECT_EQ(cache.get(0)->tensors[0].size(0), 10);
}

}  // namespace
}  // namespace troika
