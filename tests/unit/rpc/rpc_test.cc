// Requests and their replies, by the plug-in as it is built, over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "unit/rpc/support.h"

namespace troika::test {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

class RpcCalls : public Rpc {
 protected:
  void SetUp() override {
    Rpc::SetUp();
    if (IsSkipped()) return;
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.most_body_bytes = 64 << 20;
    server_.emplace(options, handler_);
    use(Bodies::kThroughMemory);
  }

  // How large bodies pass.
  enum class Bodies { kThroughMemory, kThroughSocket };
  static constexpr std::array kBoth = {Bodies::kThroughMemory, Bodies::kThroughSocket};
  void use(Bodies bodies) {
    RpcClientOptions options;
    options.share_memory = bodies == Bodies::kThroughMemory;
    client_.emplace(local(server_->port()), options);
  }

  // The body of an echo.
  std::vector<std::byte> echo(std::span<const std::byte> body) {
    const RpcReply reply = client_->call("echo", message_of("a header", body), soon());
    EXPECT_EQ(reply.header, "a header");
    return {reply.body.begin(), reply.body.end()};
  }

  Handler handler_;
  std::optional<RpcServer> server_;
  std::optional<RpcClient> client_;
};

TEST_F(RpcCalls, EchoBodiesOfAllSizes) {
  for (const Bodies bodies : kBoth) {
    use(bodies);
    for (const std::size_t bytes : {0, 1, 1000, 16383, 16384, 16385, 65535, 65536, 10'000'019,
                                    1 << 20, (1 << 20) + 1, 65536}) {
      const std::vector<std::byte> body = numbered(bytes);
      EXPECT_TRUE(echo(body) == body) << bytes;
    }
  }
}

TEST_F(RpcCalls, SendPartsEndToEnd) {
  const std::vector<std::byte> body = numbered(3'000'000);
  const std::span<const std::byte> all(body);
  RpcMessage message = message_of("parts");
  std::size_t at = 0;
  for (std::size_t size = 0; at < body.size(); size = size * 3 / 2 + 1) {
    const std::size_t taken = std::min(size, body.size() - at);
    message.body.push_back(all.subspan(at, taken));
    at += taken;
  }
  message.body.emplace_back();
  for (const Bodies bodies : kBoth) {
    use(bodies);
    const RpcReply reply = client_->call("echo", message, soon());
    EXPECT_TRUE(std::ranges::equal(reply.body, body));
  }
}

TEST_F(RpcCalls, CarryHeadersOfAnyBytes) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, kMostHeaderBytes}) {
    std::string header(bytes, '\n');
    if (bytes > 0) header.front() = '\0';
    EXPECT_TRUE(client_->call("echo", message_of(header), soon()).header == header);
  }
}

TEST_F(RpcCalls, WriteABodyWhereItBelongs) {
  for (const std::size_t bytes : {100, 5'000'000, 200, 5'000'000}) {
    if (bytes == 200) use(Bodies::kThroughSocket);
    std::vector<std::byte> into(bytes);
    const RpcReply reply = client_->call("make", message_of(std::to_string(bytes)), soon(), into);
    EXPECT_EQ(reply.body.data(), into.data());
    EXPECT_EQ(reply.body.size(), bytes);
    EXPECT_EQ(reply.owner, nullptr);
    EXPECT_TRUE(into == numbered(bytes));
  }
}

TEST_F(RpcCalls, NameBothSizesWhereABodyDoesNotFit) {
  std::vector<std::byte> into(5'000'001);
  for (const char* made : {"100", "5000000", "6000000", "4000000", "6000000"}) {
    if (std::string_view(made) == "4000000") use(Bodies::kThroughSocket);
    try {
      static_cast<void>(client_->call("make", message_of(made), soon(), into));
      ADD_FAILURE() << "it was taken";
    } catch (const DataError& error) {
      EXPECT_EQ(error.what(), "the reply of " + local(server_->port()) +
                                  " to 'make' has a body of " + made +
                                  " bytes, and the memory for it has 5000001");
    }
  }
  EXPECT_EQ(echo(numbered(10)).size(), 10U);
}

TEST_F(RpcCalls, AlignBodies) {
  const RpcReply reply = client_->call("make", message_of("1000"), soon());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reply.body.data()) % 64, 0U);
}

TEST_F(RpcCalls, TellTheHandlerWhoCalls) {
  const RpcReply reply = client_->call("size", message_of("", numbered(12)), soon());
  EXPECT_THAT(reply.header, StartsWith("12 from 127.0.0.1:"));
}

TEST_F(RpcCalls, OfManyThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 16; ++thread) {
    threads.emplace_back([this, thread] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = std::to_string(thread) + "/" + std::to_string(i);
        const std::vector<std::byte> body(static_cast<std::size_t>(1 + thread * 40'000 + i),
                                          static_cast<std::byte>(thread * 20 + i));
        const RpcReply reply = client_->call("echo", message_of(name, body), soon());
        EXPECT_EQ(reply.header, name);
        EXPECT_TRUE(std::ranges::equal(reply.body, body));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Calls that wait need a thread each, and hold up no other.
TEST_F(RpcCalls, MayWaitInLargeNumbers) {
  constexpr int kWaiting = 40;
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiting; ++i) {
    threads.emplace_back(
        [this] { EXPECT_THROW(static_cast<void>(client_->call("wait", {}, soon())), PeerError); });
  }
  EXPECT_TRUE(comes_true([&] { return handler_.waiting() == kWaiting; }));
  EXPECT_EQ(echo(numbered(100'000)).size(), 100'000U);
  client_->cancel();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(comes_true([&] { return handler_.abandoned() == kWaiting; }));
}

template <class Expected>
void expect_type(RpcClient& client, const std::string& kind) {
  try {
    static_cast<void>(client.call("fail-" + kind, message_of("it went\nwrong"), soon()));
    ADD_FAILURE() << kind << " did not travel";
  } catch (const Error& error) {
    EXPECT_EQ(typeid(error), typeid(Expected)) << kind;
    EXPECT_STREQ(error.what(), "it went\nwrong");
    EXPECT_EQ(error.hint(), "do it");
  }
}

TEST_F(RpcCalls, ThrowWhatTheHandlerThrows) {
  expect_type<InternalError>(*client_, "1");
  expect_type<UsageError>(*client_, "2");
  expect_type<DataError>(*client_, "3");
  expect_type<RendezvousError>(*client_, "4");
  expect_type<RankDiedError>(*client_, "5");
  expect_type<NonFiniteError>(*client_, "6");
  expect_type<StorageError>(*client_, "7");
  expect_type<CheckpointedError>(*client_, "75");
  expect_type<InterruptedError>(*client_, "130");
  expect_type<DeadlineError>(*client_, "deadline");
  expect_type<PeerError>(*client_, "peer");
  for (const char* kind : {"fail-foreign", "fail-other"}) {
    try {
      static_cast<void>(client_->call(kind, message_of("odd"), soon()));
      ADD_FAILURE() << kind;
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), StartsWith("internal error: "));
    }
  }
  EXPECT_EQ(echo(numbered(10)).size(), 10U);
}

TEST_F(RpcCalls, ShortenErrorsThatAreEndless) {
  try {
    static_cast<void>(client_->call("fail-3", message_of(std::string(900'000, 'x')), soon()));
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()), std::string(65536, 'x'));
  }
}

TEST_F(RpcCalls, RefuseWhatIsTooLong) {
  const std::vector<std::byte> body((64 << 20) + 1);
  try {
    static_cast<void>(client_->call("echo", message_of("", body), soon()));
    ADD_FAILURE() << "the body was taken";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(), local(server_->port()) +
                                " refuses 'echo': a body of 64.0 MiB for 'echo', where the server "
                                "takes 64.0 MiB");
  }
  EXPECT_THROW(static_cast<void>(client_->call(
                   "echo", message_of(std::string(kMostHeaderBytes + 1, 'x')), soon())),
               UsageError);
  EXPECT_THROW(static_cast<void>(client_->call("", {}, soon())), UsageError);
  EXPECT_THROW(static_cast<void>(client_->call(std::string(kMostMethodBytes + 1, 'm'), {}, soon())),
               UsageError);
  EXPECT_THROW(static_cast<void>(client_->call("header", message_of("1048577"), soon())),
               InternalError);
  RpcClientOptions little;
  little.most_body_bytes = 1000;
  RpcClient client(local(server_->port()), little);
  EXPECT_THROW(static_cast<void>(client.call("make", message_of("1001"), soon())), DataError);
  EXPECT_EQ(client.call("make", message_of("1000"), soon()).body.size(), 1000U);
  EXPECT_EQ(echo(numbered(10)).size(), 10U);
}

TEST_F(RpcCalls, EndAtTheirDeadline) {
  const std::vector<std::byte> body = numbered(200'000);
  for (const double seconds : {0.0, 0.2}) {
    try {
      static_cast<void>(
          client_->call("wait", message_of("", body), Deadline::in(Seconds(seconds))));
      ADD_FAILURE() << "it was answered";
    } catch (const DeadlineError& error) {
      EXPECT_THAT(error.what(),
                  StartsWith("'wait' of " + local(server_->port()) + " has not answered in "));
    }
    EXPECT_TRUE(echo(body) == body);  // the connection is as good as ever
  }
  EXPECT_TRUE(comes_true([&] { return handler_.abandoned() == handler_.waiting(); }));
}

TEST_F(RpcCalls, EndWithTheServer) {
  std::thread waiting(
      [this] { EXPECT_THROW(static_cast<void>(client_->call("wait", {}, soon())), PeerError); });
  EXPECT_TRUE(comes_true([&] { return handler_.waiting() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  server_.reset();
  waiting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(RpcCalls, RefuseAddressesThatAreNone) {
  for (const char* address : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "a b:1",
                              "::1:80", "[::1]", "http://a:1"}) {
    EXPECT_THROW(RpcClient{address}, UsageError) << address;
  }
  RpcServerOptions options;
  options.listen = local(server_->port());
  try {
    const RpcServer second(options, handler_);
    ADD_FAILURE() << "two servers have one port";
  } catch (const RendezvousError& error) {
    EXPECT_EQ(error.what(),
              "cannot listen on " + options.listen + " for requests: Address already in use");
  }
}

// How many threads and descriptors this process has, and how much memory it holds.
struct Holdings {
  std::ptrdiff_t threads, descriptors, kibibytes;
};

Holdings holdings() {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
  };
  std::ifstream statm("/proc/self/statm");
  std::ptrdiff_t total = 0, resident = 0;
  statm >> total >> resident;
  return {entries("/proc/self/task"), entries("/proc/self/fd"), resident * 4};
}

TEST_F(RpcCalls, LeaveNothingBehind) {
  const std::vector<std::byte> body = numbered(100'000);
  const auto call_often = [&](int times) {
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(client_->call("echo", message_of("", body), soon()).body.size(), body.size());
      EXPECT_THROW(static_cast<void>(client_->call("fail-3", message_of("a"), soon())), DataError);
    }
  };
  call_often(200);
  const Holdings before = holdings();
  call_often(500);
  const Holdings after = holdings();
  EXPECT_LE(after.threads, before.threads + 4);
  EXPECT_LE(after.descriptors, before.descriptors + 2);
  EXPECT_LE(after.kibibytes, before.kibibytes + 20'000);  // a fifth of what passes
}

TEST_F(RpcCalls, OfClientsThatComeAndGoLeaveNothingBehind) {
  const auto come_and_go = [&](int times) {
    for (int i = 0; i < times; ++i) {
      RpcClient client(local(server_->port()));
      EXPECT_EQ(client.call("echo", message_of("a"), soon()).header, "a");
    }
  };
  come_and_go(30);
  const Holdings before = holdings();
  come_and_go(60);
  EXPECT_TRUE(comes_true([&] { return holdings().descriptors <= before.descriptors + 6; }));
  EXPECT_LE(holdings().threads, before.threads + 4);
}

// A method that has had a large reply gets the next ones through memory, without being told where
// they belong.
TEST_F(RpcCalls, LearnWhichRepliesAreLarge) {
  for (int i = 0; i < 3; ++i) {
    for (const std::size_t bytes : {1'000'000, 100}) {
      const RpcReply reply = client_->call("make", message_of(std::to_string(bytes)), soon());
      EXPECT_TRUE(std::ranges::equal(reply.body, numbered(bytes)));
    }
  }
}

std::vector<std::string> files_in_memory() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("troika-rpc-")) names.push_back(name);
  }
  return names;
}

TEST_F(RpcCalls, LeaveNoNamesInMemory) {
  const std::vector<std::byte> body = numbered(1'000'000);
  const std::vector<std::string> before = files_in_memory();
  EXPECT_TRUE(echo(body) == body);
  EXPECT_THAT(files_in_memory(), testing::IsSubsetOf(before));
  EXPECT_THROW(
      static_cast<void>(client_->call("wait", message_of("", body), Deadline::in(Seconds(0.1)))),
      DeadlineError);
  EXPECT_THAT(files_in_memory(), testing::IsSubsetOf(before));
}

// Prints what docs and reports quote; its bound is a hundred times as long.
TEST_F(RpcCalls, EchoLargeBodiesFast) {
  const std::vector<std::byte> body(40'000'000, std::byte{3});
  std::vector<std::byte> into(body.size());
  for (const Bodies bodies : kBoth) {
    use(bodies);
    double best = 1e9;
    for (int i = 0; i < 6; ++i) {
      const Deadline deadline = soon();
      static_cast<void>(client_->call("echo", message_of("", body), deadline, into));
      best = std::min(best, deadline.waited().count());
    }
    EXPECT_TRUE(into == body);
    EXPECT_LT(best, 10);
    std::printf("           an echo of 40 MB through %s takes %.1f ms\n",
                bodies == Bodies::kThroughMemory ? "shared memory" : "a socket", best * 1e3);
  }
}

}  // namespace
}  // namespace troika::test
