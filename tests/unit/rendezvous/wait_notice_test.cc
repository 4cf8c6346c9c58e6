#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/rendezvous/wait_notice.h>

namespace troika {
namespace {

using ::testing::Le;

TEST(WaitNotice, IsDueBeforeTheWaitEnds) {
  EXPECT_THAT(WaitNotice(Deadline::in(Seconds(300))).next().timeout().count(), Le(10.0));
  EXPECT_THAT(WaitNotice(Deadline::in(Seconds(1))).next().timeout().count(), Le(1.0));
}

TEST(WaitNotice, IsNotGivenAtOnce) {
  WaitNotice(Deadline::in(Seconds(300))).log_if_due([]() -> std::string {
    ADD_FAILURE() << "nobody has waited yet";
    return "";
  });
}

TEST(WaitNotice, WaitsAsTheStoreDoes) {
  Store store = Store::host(0, Reach::kThisHost);
  store.set("here", "");
  const auto what = [] { return std::string("a key"); };
  EXPECT_TRUE(wait_with_notice(store, {"here"}, Deadline::in(Seconds(30)), what));
  EXPECT_FALSE(wait_with_notice(store, {"not here"}, Deadline::in(Seconds(0.1)), what));
}

}  // namespace
}  // namespace troika
