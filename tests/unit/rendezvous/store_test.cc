#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/rendezvous/store.h>
#include <troika/rendezvous/store_watch.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <string>
#include <thread>

namespace troika {
namespace {

using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::in(Seconds(20));
}

TEST(Store, SetGetAddCheck) {
  Store host = Store::host(0, Reach::kThisHost);
  Store client = Store::connect(host.endpoint(), soon());
  EXPECT_FALSE(client.is_set("key"));
  host.set("key", std::string_view("a\0b", 3));
  EXPECT_EQ(client.get("key", soon()), std::string("a\0b", 3));
  EXPECT_EQ(client.add("counter", 2), 2);
  EXPECT_EQ(host.add("counter", 3), 5);
  client.set("empty", "");
  EXPECT_EQ(host.get_all({"key", "empty"}), (std::vector<std::string>{{"a\0b", 3}, ""}));
}

// A network namespace of its own, in a user namespace where this process may make one.
bool enter_network_without_loopback() {
  return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}

TEST(Store, ALoopbackThatIsDownIsNamedAtOnce) {
  const auto host_and_connect = [] {
    constexpr int kMayNot = 77;
    if (!enter_network_without_loopback()) _exit(kMayNot);
    const auto start = Clock::now();
    int named = 0;
    const auto expect_named = [&](const std::function<void()>& act) {
      try {
        act();
      } catch (const RendezvousError& error) {
        if (std::string(error.what()).starts_with("the loopback is down")) ++named;
      }
    };
    expect_named([] { (void)Store::host(0, Reach::kThisHost); });
    expect_named([] { (void)Store::host(0, Reach::kEveryHost); });
    for (const char* name : {"127.0.0.1", "localhost"}) {
      expect_named([&] { (void)Store::connect({name, 29500}, Deadline::in(Seconds(5))); });
    }
    constexpr int kAll = 4;
    _exit(named == kAll && Seconds(Clock::now() - start).count() < 5 ? 0 : 1);
  };
  const pid_t child = fork();
  if (child == 0) host_and_connect();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this process may make no network namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Store, PrefixesSeparateJobs) {
  Store host = Store::host(0, Reach::kThisHost);
  Store one = host.with_prefix("one"), two = host.with_prefix("two");
  one.set("key", "1");
  EXPECT_FALSE(two.is_set("key"));
  EXPECT_EQ(one.clone().get("key", soon()), "1");
  EXPECT_EQ(host.get("one/key", soon()), "1");
}

TEST(Store, AKeyThatNobodySetsPassesTheDeadline) {
  Store host = Store::host(0, Reach::kThisHost);
  const auto start = Clock::now();
  EXPECT_FALSE(host.wait({"key"}, Deadline::in(Seconds(0.2))));
  EXPECT_THROW((void)host.get("key", Deadline::in(Seconds(0.2))), RendezvousError);
  EXPECT_LT(Seconds(Clock::now() - start).count(), 10.0);
  // The connection is still good.
  host.set("key", "value");
  EXPECT_EQ(host.get("key", soon()), "value");
}

TEST(Store, ACloneWaitsWhileTheOriginalWorks) {
  Store host = Store::host(0, Reach::kThisHost);
  auto waiting = std::async(std::launch::async,
                            [clone = host.clone()]() mutable { return clone.get("key", soon()); });
  EXPECT_EQ(host.add("beat", 1), 1);
  host.set("key", "value");
  EXPECT_EQ(waiting.get(), "value");
}

TEST(Store, SaysNothingOnStderrWhenItCannotConnect) {
  const Endpoint endpoint{"127.0.0.1", bind_port(0, Reach::kThisHost).port};
  ::testing::internal::CaptureStderr();
  EXPECT_THROW((void)Store::connect(endpoint, Deadline::in(Seconds(0.2))), RendezvousError);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Store, APortOfAnotherProgramIsNotARendezvous) {
  const ListeningSocket mute = bind_port(0, Reach::kThisHost);  // accepts, and never answers
  const Endpoint endpoint{"127.0.0.1", mute.port};
  ::testing::internal::CaptureStderr();
  try {
    (void)Store::connect(endpoint, Deadline::in(Seconds(0.5)));
    ADD_FAILURE();
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no rendezvous at " + endpoint.describe()));
    EXPECT_THAT(error.what(), HasSubstr("something listens there"));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Store, ALostStoreIsNamed) {
  auto host = std::make_unique<Store>(Store::host(0, Reach::kThisHost));
  Store client = Store::connect(host->endpoint(), soon());
  const std::string where = client.endpoint().describe();
  auto waiting = std::async(std::launch::async, [&] { return client.get("key", soon()); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  host.reset();
  try {
    (void)waiting.get();
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("store at " + where + " is gone"));
  }
}

TEST(StoreWatch, HandsOverTheValue) {
  Store host = Store::host(0, Reach::kThisHost);
  std::promise<std::string> seen;
  StoreWatch watch(
      host, abort_key(1), [&](const std::string& value) { seen.set_value(value); },
      [](const std::string&) { ADD_FAILURE(); });
  host.set(abort_key(1), "rank 0 died");
  EXPECT_EQ(seen.get_future().get(), "rank 0 died");
}

TEST(StoreWatch, EndsQuietlyWhenNothingHappens) {
  Store host = Store::host(0, Reach::kThisHost);
  const StoreWatch watch(
      host, abort_key(1), [](const std::string&) { ADD_FAILURE(); },
      [](const std::string&) { ADD_FAILURE(); });
}

TEST(StoreWatch, SaysWhenTheStoreIsLost) {
  auto host = std::make_unique<Store>(Store::host(0, Reach::kThisHost));
  Store client = Store::connect(host->endpoint(), soon());
  std::promise<std::string> lost;
  const StoreWatch watch(
      client, abort_key(1), [](const std::string&) { ADD_FAILURE(); },
      [&](const std::string& reason) { lost.set_value(reason); });
  host.reset();
  EXPECT_THAT(lost.get_future().get(), HasSubstr("is gone"));
}

}  // namespace
}  // namespace troika
