#include <gtest/gtest.h>
#include <troika/data/overlapped.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace troika {
namespace {

TEST(Overlapped, CallsEachNumberOnce) {
  for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
    run_overlapped(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
    for (const auto& each : calls) EXPECT_EQ(each, 1);
  }
}

// The first reads a store for longer than the second: all are under way at once.
TEST(Overlapped, DoesNotWaitForOneBeforeTheNext) {
  std::atomic<bool> is_second_done = false;
  run_overlapped(2, [&](std::int64_t i) {
    if (i == 0) is_second_done.wait(false);
    is_second_done = true;
    is_second_done.notify_all();
  });
  EXPECT_TRUE(is_second_done);
}

TEST(Overlapped, ThrowsTheFirstErrorInOrder) {
  try {
    run_overlapped(100, [](std::int64_t i) {
      if (i >= 3) throw std::runtime_error(std::to_string(i));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
}

}  // namespace
}  // namespace troika
