// A server whose handler every test here uses, in this process or in one of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <troika/base/file.h>
#include <troika/rpc/rpc.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace troika::test {

// Answers, by method:
//   echo          header and body
//   size          the header with the body's size in it, no body
//   make          a body of as many bytes as the header says, each its index modulo 251
//   fail-KIND     throws the error of that kind, with the header as its message and "do it" as hint
//   header        a header of as many bytes as the header says
//   count         the number of calls that have waited
//   stop          stops the process whose id is the header, then sends it 100 MB
//   wait          waits until the call is abandoned
class Handler {
 public:
  RpcMessage operator()(const RpcRequest& request);

  [[nodiscard]] int waiting() const { return *waiting_; }
  [[nodiscard]] int abandoned() const { return *abandoned_; }

 private:
  std::shared_ptr<std::atomic<int>> waiting_ = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> abandoned_ = std::make_shared<std::atomic<int>>(0);
};

// A process of this program that does one thing until it is killed, or this one ends.
class OtherProcess {
 public:
  // Serves on a port of this host's loopback.
  [[nodiscard]] static OtherProcess serving(int port = 0) { return {"Serves", port}; }
  // Calls "stop" of a server there, which stops this process before it replies.
  [[nodiscard]] static OtherProcess calling(int port) { return {"Calls", port}; }
  OtherProcess(OtherProcess&& other) noexcept;
  OtherProcess& operator=(OtherProcess&&) = delete;
  ~OtherProcess() { kill(); }

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill();

 private:
  // Returns once the process has reported its port.
  OtherProcess(const std::string& what, int port);

  pid_t pid_ = 0;
  int port_ = 0;
  UniqueFd life_;  // the process lives for as long as this end is open
};

// Skips where this build has no plug-in.
class Rpc : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(TROIKA_FLIGHT_PROBE).empty()) GTEST_SKIP() << "TROIKA_ARROW is off";
  }
};

[[nodiscard]] inline std::string local(int port) {
  return "127.0.0.1:" + std::to_string(port);
}
[[nodiscard]] inline Deadline soon() {
  return Deadline::in(Seconds(30));
}
[[nodiscard]] std::vector<std::byte> numbered(std::size_t bytes);
[[nodiscard]] RpcMessage message_of(std::string header, std::span<const std::byte> body = {});

// Returns once `condition` holds, and false if it does not within 20 s.
template <class Condition>
[[nodiscard]] bool comes_true(const Condition& condition) {
  const Deadline deadline = soon();
  while (!condition()) {
    if (deadline.passed()) return false;
    ::usleep(500);
  }
  return true;
}

}  // namespace troika::test
