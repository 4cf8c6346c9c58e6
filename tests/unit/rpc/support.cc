#include "unit/rpc/support.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/own_program.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace troika::test {
namespace {

constexpr const char* kPortVariable = "TROIKA_TEST_RPC_PORT";
constexpr int kLifeFd = 200;    // ends when the parent does
constexpr int kReportFd = 201;  // takes the port

[[noreturn]] void fail(const std::string& kind, const std::string& message) {
  const std::string hint = "do it";
  if (kind == "deadline") throw DeadlineError(message, hint);
  if (kind == "peer") throw PeerError(message, hint);
  if (kind == "foreign") throw std::runtime_error(message);
  if (kind == "other") throw 7;  // NOLINT(hicpp-exception-baseclass): what no handler should do
  const auto code = static_cast<ExitCode>(std::stoi(kind));
  throw_failure({code, message, hint, false});
}

}  // namespace

RpcMessage Handler::operator()(const RpcRequest& request) {
  if (request.method == "echo") return {request.header, {request.body}};
  if (request.method == "size") {
    return {request.header + std::to_string(request.body.size()) + " from " + request.peer};
  }
  if (request.method == "make") {
    const auto made =
        std::make_shared<std::vector<std::byte>>(numbered(std::stoul(request.header)));
    return {request.header, {*made}, made};
  }
  if (request.method.starts_with("fail-")) fail(request.method.substr(5), request.header);
  if (request.method == "count") return {std::to_string(waiting())};
  if (request.method == "header") return {std::string(std::stoul(request.header), 'x')};
  ++*waiting_;
  if (request.method == "stop") {
    ::kill(std::stoi(request.header), SIGSTOP);
    const auto made = std::make_shared<std::vector<std::byte>>(100'000'000);
    return {"", {*made}, made};
  }
  while (!request.abandoned()) std::this_thread::yield();
  ++*abandoned_;
  return {};
}

OtherProcess::OtherProcess(const std::string& what, int port) {
  std::array<int, 2> life{}, report{};
  EXPECT_EQ(pipe2(life.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(report.data(), O_CLOEXEC), 0);
  const UniqueFd life_end(life[0]), report_end(report[1]), reported(report[0]);
  life_ = UniqueFd(life[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, life_end.get(), kLifeFd);
  posix_spawn_file_actions_adddup2(&actions, report_end.get(), kReportFd);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const std::string program = own_program();
  std::array<std::string, 3> words = {program, "--gtest_also_run_disabled_tests",
                                      "--gtest_filter=RpcProcess.DISABLED_" + what};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  setenv(kPortVariable, std::to_string(port).c_str(), 1);
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  pollfd waited{reported.get(), POLLIN, 0};
  if (poll(&waited, 1, 30'000) != 1 ||
      read(reported.get(), &port_, sizeof(port_)) != sizeof(port_)) {
    ADD_FAILURE() << "the other process has not started";
  }
}

OtherProcess::OtherProcess(OtherProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), port_(other.port_), life_(std::move(other.life_)) {}

void OtherProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
}

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i % 251);
  return all;
}

RpcMessage message_of(std::string header, std::span<const std::byte> body) {
  RpcMessage message;
  message.header = std::move(header);
  if (!body.empty()) message.body = {body};
  return message;
}

// Tells the parent that this process is ready, and with which port.
void report(int port) {
  ASSERT_EQ(write(kReportFd, &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  close(kReportFd);
}

void wait_for_parent() {
  char nothing = 0;
  while (read(kLifeFd, &nothing, 1) > 0) {
  }
}

// What OtherProcess runs.
TEST(RpcProcess, DISABLED_Serves) {
  const char* port = std::getenv(kPortVariable);
  if (port == nullptr) GTEST_SKIP() << "OtherProcess runs it";
  RpcServerOptions options;
  options.listen = "127.0.0.1:" + std::string(port);
  const RpcServer server(options, Handler());
  report(server.port());
  wait_for_parent();
}

TEST(RpcProcess, DISABLED_Calls) {
  const char* port = std::getenv(kPortVariable);
  if (port == nullptr) GTEST_SKIP() << "OtherProcess runs it";
  std::thread([] {
    wait_for_parent();
    _exit(0);
  }).detach();
  report(std::stoi(port));
  RpcClientOptions options;
  options.share_memory = false;
  RpcClient client("127.0.0.1:" + std::string(port), options);
  static_cast<void>(client.call("stop", message_of(std::to_string(getpid())), soon()));
}

}  // namespace troika::test
