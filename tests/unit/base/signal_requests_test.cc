#include <gtest/gtest.h>
#include <troika/base/signal_requests.h>

#include <csignal>

namespace troika {
namespace {

using std::chrono::milliseconds;

TEST(SignalRequests, TheSameSignalWithinASecondBelongsToTheRequest) {
  SignalRequests requests;
  const auto start = SignalRequests::Clock::now();
  EXPECT_TRUE(requests.is_new(SIGTERM, start));
  EXPECT_FALSE(requests.is_new(SIGTERM, start));
  EXPECT_FALSE(requests.is_new(SIGTERM, start + milliseconds(999)));
  EXPECT_TRUE(requests.is_new(SIGTERM, start + milliseconds(1000)));
  // Of the second request.
  EXPECT_FALSE(requests.is_new(SIGTERM, start + milliseconds(1999)));
}

TEST(SignalRequests, AnotherSignalAsksAnew) {
  SignalRequests requests;
  const auto start = SignalRequests::Clock::now();
  EXPECT_TRUE(requests.is_new(SIGINT, start));
  EXPECT_TRUE(requests.is_new(SIGTERM, start));
  requests.forget();
  EXPECT_TRUE(requests.is_new(SIGTERM, start));
}

}  // namespace
}  // namespace troika
