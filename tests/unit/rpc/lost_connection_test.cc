// Servers that are not there, die or come back, and peers that send what is no request.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/observe/log.h>
#include <troika/rpc/library.h>
#include <troika/rpc/segment.h>
#include <troika/rpc/wire.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "support/reserved_port.h"
#include "unit/rpc/support.h"

namespace troika::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

class RpcLost : public Rpc {};

TEST_F(RpcLost, NamesAServerThatIsNotThere) {
  const ReservedPort port;  // nobody listens on it
  RpcClient client(local(port.port()));
  for (int i = 0; i < 2; ++i) {
    try {
      static_cast<void>(client.call("pull", {}, soon()));
      ADD_FAILURE() << "it was answered";
    } catch (const PeerError& error) {
      EXPECT_THAT(error.what(),
                  StartsWith("cannot connect for 'pull' of " + local(port.port()) + ": "));
      EXPECT_THAT(error.what(), HasSubstr("Connection refused"));
      EXPECT_THAT(error.hint(), HasSubstr("is the server running"));
    }
  }
}

TEST_F(RpcLost, NamesAHostThatIsUnknown) {
  RpcClient client("no-such-host.invalid:4000");
  try {
    static_cast<void>(client.call("pull", {}, soon()));
    ADD_FAILURE() << "it was answered";
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no-such-host.invalid"));
  }
}

TEST_F(RpcLost, EndsCallsOfAServerThatIsKilled) {
  auto server = OtherProcess::serving();
  RpcClient client(local(server.port()));
  EXPECT_EQ(client.call("echo", message_of("a"), soon()).header, "a");
  std::chrono::steady_clock::time_point ended;
  std::thread waiting([&] {
    try {
      static_cast<void>(client.call("wait", {}, soon()));
      ADD_FAILURE() << "it was answered";
    } catch (const PeerError& error) {
      EXPECT_THAT(error.what(), StartsWith("lost the connection of 'wait' of " +
                                           local(server.port()) + " while "));
    }
    ended = std::chrono::steady_clock::now();
  });
  EXPECT_TRUE(comes_true([&] { return client.call("count", {}, soon()).header == "1"; }));
  const auto killed = std::chrono::steady_clock::now();
  server.kill();
  waiting.join();
  EXPECT_LT(ended - killed, std::chrono::seconds(10));
}

TEST_F(RpcLost, EndsATransferToAServerThatIsKilled) {
  auto server = OtherProcess::serving();
  RpcClientOptions options;
  options.share_memory = false;
  RpcClient client(local(server.port()), options);
  EXPECT_EQ(client.call("echo", message_of("a"), soon()).header, "a");
  kill(server.pid(), SIGSTOP);  // so that the body cannot have passed
  const std::vector<std::byte> body(100'000'000);
  std::thread sending([&] {
    EXPECT_THROW(static_cast<void>(client.call("echo", message_of("", body), soon())), PeerError);
  });
  server.kill();
  sending.join();
}

TEST_F(RpcLost, PassesADeadlineWhileAServerStandsStill) {
  auto server = OtherProcess::serving();
  RpcClientOptions options;
  options.share_memory = false;
  RpcClient client(local(server.port()), options);
  EXPECT_EQ(client.call("echo", message_of("a"), soon()).header, "a");
  kill(server.pid(), SIGSTOP);
  const std::vector<std::byte> body = numbered(50'000'000);
  try {
    static_cast<void>(client.call("echo", message_of("", body), Deadline::in(Seconds(0.3))));
    ADD_FAILURE() << "it was answered";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the deadline passed while sending the request"));
  }
  kill(server.pid(), SIGCONT);
  const RpcReply reply = client.call("echo", message_of("", body), soon());
  EXPECT_TRUE(std::ranges::equal(reply.body, body));
}

TEST_F(RpcLost, CallsAServerThatHasComeBack) {
  std::optional<OtherProcess> first(OtherProcess::serving());
  const int port = first->port();
  RpcClient client(local(port));
  const std::vector<std::byte> body = numbered(200'000);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.call("echo", message_of("a", body), soon()).body.size(), body.size());
    first.reset();
    EXPECT_THROW(static_cast<void>(client.call("echo", message_of("b", body), soon())), PeerError);
    first.emplace(OtherProcess::serving(port));
    EXPECT_EQ(client.call("echo", message_of("c", body), soon()).body.size(), body.size());
  }
}

// A reply that a client does not take holds up its own thread alone, and not for ever.
TEST_F(RpcLost, EndsAServerWhoseClientStandsStill) {
  Handler handler;
  std::optional<RpcServer> server;
  server.emplace(RpcServerOptions{"127.0.0.1:0"}, handler);
  auto client = OtherProcess::calling(server->port());
  EXPECT_TRUE(comes_true([&] { return handler.waiting() == 1; }));
  RpcClient other(local(server->port()));
  EXPECT_EQ(other.call("echo", message_of("a"), soon()).header, "a");
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(RpcLost, EndsCallsThatAreCancelled) {
  Handler handler;
  const RpcServer server({"127.0.0.1:0"}, handler);
  RpcClient client(local(server.port()));
  std::thread waiting([&] {
    try {
      static_cast<void>(client.call("wait", {}, soon()));
      ADD_FAILURE() << "it was answered";
    } catch (const PeerError& error) {
      EXPECT_THAT(error.what(),
                  StartsWith("'wait' of " + local(server.port()) + " was cancelled while "));
    }
  });
  EXPECT_TRUE(comes_true([&] { return handler.waiting() == 1; }));
  client.cancel();
  waiting.join();
  EXPECT_EQ(client.call("echo", message_of("a"), soon()).header, "a");
  EXPECT_TRUE(comes_true([&] { return handler.abandoned() == 1; }));
}

// A server that has been started again knows no segment of before. This one forgets them all, and
// counts what it is asked.
TEST_F(RpcLost, CallsAServerThatKnowsNoSegment) {
  std::atomic<int> attached = 0, unknown = 0;
  std::vector<std::unique_ptr<detail::PeerSegment>> peers;
  const auto accept = [&](rpc_plugin::Incoming& incoming, const rpc_plugin::TakeText&) {
    const auto first = incoming.next().value();
    const std::vector<std::byte> opening(first.begin(), first.end());
    const detail::RequestOpening request = detail::decode_request(opening, "a test");
    std::size_t received = 0;
    while (const auto chunk = incoming.next()) received += chunk->size();
    detail::ReplyOpening reply;
    const std::string header = std::to_string(received);
    reply.header = header;
    if (request.kind == detail::RequestKind::kAttach) {
      ++attached;
      peers.push_back(detail::PeerSegment::find(request.header));
      reply.header = detail::kAttached;
    } else if (!request.segment.empty()) {
      ++unknown;
      reply.status = detail::ReplyStatus::kUnknownSegment;
      reply.header = "";
    }
    EXPECT_TRUE(incoming.send(detail::encode(reply)));
  };
  const auto server = detail::rpc_library().serve("127.0.0.1", 0, nullptr, accept, [](auto) {});
  ASSERT_NE(server, nullptr);
  RpcClient client(local(server->port()));
  const std::vector<std::byte> body = numbered(100'000);
  EXPECT_EQ(client.call("push", message_of("", body), soon()).header, "100000");
  EXPECT_EQ(attached, 2);
  EXPECT_EQ(unknown, 2);
}

// Sends bytes to a port, and waits until the server closes the connection or says something.
void send_raw(int port, std::string_view bytes) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_GE(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  shutdown(fd.get(), SHUT_WR);
  std::array<char, 4096> answer{};
  while (recv(fd.get(), answer.data(), answer.size(), 0) > 0) {
  }
}

class RpcMalformed : public RpcLost {
 protected:
  void SetUp() override {
    RpcLost::SetUp();
    if (!IsSkipped()) server_.emplace(RpcServerOptions{"127.0.0.1:0"}, Handler());
  }
  void TearDown() override {
    if (IsSkipped()) return;
    RpcClient client(local(server_->port()));
    EXPECT_EQ(client.call("echo", message_of("still there"), soon()).header, "still there");
  }

  // Sends messages as a request, and returns what is said to them: the refusal, or the answer.
  std::string answer_to(const std::vector<std::vector<std::byte>>& messages,
                        rpc_plugin::Ending expected) const {
    const auto connection =
        detail::rpc_library().connect("127.0.0.1", server_->port(), nullptr, [](auto) {});
    rpc_plugin::Exchange exchange;
    exchange.seconds = 20;
    std::size_t at = 0;
    exchange.next = [&]() -> std::optional<rpc_plugin::Bytes> {
      if (at == messages.size()) return std::nullopt;
      return messages[at++];
    };
    std::string answer;
    exchange.take = [&](rpc_plugin::Bytes message) {
      answer = text_of(message);
      return true;
    };
    exchange.reach = [](auto) {};
    std::string reason;
    const auto take = [&](std::string_view text) { reason = text; };
    const auto ending = connection->exchange(exchange, take);
    EXPECT_EQ(ending, expected) << reason;
    return ending == rpc_plugin::Ending::kDone ? answer : reason.substr(0, reason.find('\n'));
  }
  std::string refusal_of(const std::vector<std::vector<std::byte>>& messages) const {
    return answer_to(messages, rpc_plugin::Ending::kRefused);
  }

  // Returns the opening of a request whose body lies in a segment.
  static std::vector<std::byte> in_segment(std::string_view name, std::uint64_t body_bytes) {
    detail::RequestOpening opening;
    opening.carrier = detail::BodyCarrier::kSegment;
    opening.segment = name;
    opening.method = "size";
    opening.body_bytes = body_bytes;
    return detail::encode(opening);
  }
  // Asks the server to open a segment.
  bool attach(std::string_view name) const {
    detail::RequestOpening opening;
    opening.kind = detail::RequestKind::kAttach;
    opening.method = "size";
    opening.header = name;
    const std::string answer = answer_to({detail::encode(opening)}, rpc_plugin::Ending::kDone);
    return answer.find(detail::kAttached) != std::string::npos;
  }

  static std::vector<std::byte> opening(std::uint64_t body_bytes, std::size_t here) {
    detail::RequestOpening opening;
    const std::vector<std::byte> start(here);
    opening.method = "echo";
    opening.header = "header";
    opening.body_bytes = body_bytes;
    opening.body_start = start;
    return detail::encode(opening);
  }

  std::optional<RpcServer> server_;
};

TEST_F(RpcMalformed, RequestsAreRefusedWithAReason) {
  const auto bytes = [](std::string_view text) {
    const auto all = bytes_of(text);
    return std::vector<std::byte>(all.begin(), all.end());
  };
  EXPECT_THAT(refusal_of({}), HasSubstr("is empty"));
  EXPECT_THAT(refusal_of({{}}), StartsWith("the request of 127.0.0.1:"));
  EXPECT_THAT(refusal_of({bytes("GET / HTTP/1.1\r\n\r\n")}), HasSubstr("this is no request"));
  EXPECT_THAT(refusal_of({opening(10, 9)}), HasSubstr("10 bytes is declared, and 9 are here"));
  EXPECT_THAT(refusal_of({opening(10, 11)}), HasSubstr("10 bytes is declared, and 11 are here"));
  EXPECT_THAT(refusal_of({opening(10, 10), std::vector<std::byte>(1)}),
              HasSubstr("goes on after the 10 bytes"));
  EXPECT_THAT(refusal_of({opening(100'000, 0), std::vector<std::byte>(99'999)}),
              HasSubstr("ends after 99999 of 100000 bytes"));
  EXPECT_THAT(refusal_of({opening(100'000, 0), std::vector<std::byte>(100'001)}),
              HasSubstr("goes on after the 100000 bytes"));
  EXPECT_THAT(refusal_of({opening(std::uint64_t{1} << 62, 0)}), HasSubstr("a body of "));
  std::vector<std::byte> cut = opening(10, 10);
  for (std::size_t size = 0; size < cut.size(); ++size) {
    EXPECT_FALSE(refusal_of({std::vector<std::byte>(
                                cut.begin(), cut.begin() + static_cast<std::ptrdiff_t>(size))})
                     .empty());
  }
}

// By the address of the sender, and once for many.
TEST_F(RpcMalformed, RequestsAreToldInTheLog) {
  std::vector<std::string> lines;
  LogOptions options;
  options.writer = [&](LogLevel, std::string_view line) { lines.emplace_back(line); };
  configure_log(options);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(refusal_of({{}}).empty());
  configure_log({});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], StartsWith("a request was refused: the request of 127.0.0.1:"));
}

TEST_F(RpcMalformed, SegmentsAreNotTrusted) {
  EXPECT_THAT(refusal_of({in_segment("", 100'000)}), HasSubstr("no segment"));
  EXPECT_THAT(refusal_of({in_segment("../../etc/passwd", 100'000)}), HasSubstr("impossible name"));
  EXPECT_THAT(refusal_of({in_segment(std::string(32, 'A'), 100'000)}),
              HasSubstr("impossible name"));
  const std::string unknown =
      answer_to({in_segment(std::string(32, 'a'), 100'000)}, rpc_plugin::Ending::kDone);
  EXPECT_EQ(detail::decode_reply(bytes_of(unknown), "").status,
            detail::ReplyStatus::kUnknownSegment);
  for (const char* name : {"", "a", "../../etc/passwd", "0123456789abcdef0123456789abcdef"}) {
    EXPECT_FALSE(attach(name)) << name;
  }
  const auto segment = detail::OwnSegment::create();
  ASSERT_NE(segment, nullptr);
  EXPECT_TRUE(attach(segment->name()));
  EXPECT_FALSE(attach(segment->name()));  // twice
  const std::string early =
      answer_to({in_segment(segment->name(), 100'000)}, rpc_plugin::Ending::kDone);
  EXPECT_EQ(detail::decode_reply(bytes_of(early), "").status, detail::ReplyStatus::kUnknownSegment);
  EXPECT_TRUE(segment->hand_over());
  const std::vector<std::byte> body = numbered(99'999);
  const std::vector<std::span<const std::byte>> parts = {body};
  EXPECT_TRUE(segment->memory().write(parts));
  EXPECT_THAT(answer_to({in_segment(segment->name(), 99'999)}, rpc_plugin::Ending::kDone),
              HasSubstr("99999 from"));
  EXPECT_THAT(refusal_of({in_segment(segment->name(), 100'000)}), HasSubstr("is shorter than"));
  EXPECT_THAT(refusal_of({in_segment(segment->name(), 1000), std::vector<std::byte>(1000)}),
              HasSubstr("goes on in the stream"));
  EXPECT_THAT(refusal_of({in_segment(segment->name(), std::uint64_t{1} << 60)}),
              HasSubstr("a body of "));
}

TEST_F(RpcMalformed, BytesOnThePortDoNoHarm) {
  send_raw(server_->port(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  send_raw(server_->port(), std::string(100'000, '\xFF'));
  send_raw(server_->port(), "");
  send_raw(server_->port(),
           std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(1000, 'x'));
}

TEST_F(RpcMalformed, OtherUsesOfFlightAreRefused) {
  const auto strangers = reinterpret_cast<const char* (*)(int)>(detail::load_plugin(
      TROIKA_FLIGHT_PROBE, "troika_flight_strangers", detail::PluginScope::kLocal));
  const std::string lines = strangers(server_->port());
  for (const char* line :
       {"list flights: [^\n]*NotImplemented", "list actions: [^\n]*NotImplemented",
        "get: [^\n]*NotImplemented", "put: [^\n]*NotImplemented",
        "another name: [^\n]*troika-rpc/1", "nothing: [^\n]*refused", "rows: [^\n]*refused"}) {
    EXPECT_THAT(lines, ContainsRegex(line));
  }
}

}  // namespace
}  // namespace troika::test
