#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <troika/base/error.h>
#include <troika/rendezvous/endpoint.h>

#include <future>

namespace troika {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, ReadsWhatItWrites) {
  for (const Endpoint& endpoint :
       {Endpoint{"node1", 1}, Endpoint{"10.0.0.1", 65535}, Endpoint{"fd00::1", 29500}}) {
    EXPECT_EQ(parse_endpoint(endpoint.describe(), "--rendezvous"), endpoint);
  }
  EXPECT_EQ(parse_endpoint("node1", "--rendezvous"), (Endpoint{"node1", kDefaultRendezvousPort}));
  EXPECT_EQ(parse_endpoint("fd00::1", "--rendezvous"),
            (Endpoint{"fd00::1", kDefaultRendezvousPort}));
}

TEST(Endpoint, RefusesNamingTheFlag) {
  for (const char* text : {"", ":1", "a:", "a:0", "a:65536", "a:b", "[::1", "[::1]1", "[]:1"}) {
    try {
      (void)parse_endpoint(text, "--rendezvous");
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--rendezvous")) << text;
    }
  }
}

TEST(Endpoint, APortInUseIsNamed) {
  for (const Reach reach : {Reach::kThisHost, Reach::kEveryHost}) {
    const ListeningSocket first = bind_port(0, reach);
    try {
      (void)bind_port(first.port, reach);
      FAIL();
    } catch (const RendezvousError& error) {
      EXPECT_THAT(error.what(), HasSubstr("port " + std::to_string(first.port) + " is in use"));
    }
  }
}

// A port that is free now; nothing else of this host takes it in the moments of a test.
std::uint16_t free_port() {
  return bind_port(0, Reach::kThisHost).port;
}

TEST(Endpoint, NobodyListens) {
  const Endpoint endpoint{"127.0.0.1", free_port()};
  const auto start = Clock::now();
  try {
    (void)connect_to(endpoint, Deadline::in(Seconds(0.3)));
    FAIL();
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("no rendezvous at " + endpoint.describe() + " after 0.3 s"));
    EXPECT_THAT(error.what(), HasSubstr("refused"));
  }
  EXPECT_LT(Seconds(Clock::now() - start).count(), 10.0);
}

TEST(Endpoint, AnUnknownNameIsSaidToBeOne) {
  try {
    (void)connect_to({"no-such-host.invalid", 1}, Deadline::in(Seconds(0.1)));
    FAIL();
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no-such-host.invalid:1"));
    EXPECT_THAT(error.what(), HasSubstr("unknown"));
  }
}

TEST(Endpoint, WaitsForAListenerThatComesLater) {
  const std::uint16_t port = free_port();
  auto waiting = std::async(std::launch::async, [&] {
    return connect_to({"127.0.0.1", port}, Deadline::in(Seconds(20)));
  });
  // The first attempts have failed once this has passed.
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  const ListeningSocket listening = bind_port(port, Reach::kThisHost);
  EXPECT_TRUE(waiting.get().valid());
}

TEST(Endpoint, KnowsItsOwnAddresses) {
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_FALSE(is_this_host("192.0.2.77"));  // reserved for documentation
  EXPECT_FALSE(is_this_host("no-such-host.invalid"));
  EXPECT_EQ(local_address_towards({"127.0.0.1", 1}), "127.0.0.1");
}

}  // namespace
}  // namespace troika
