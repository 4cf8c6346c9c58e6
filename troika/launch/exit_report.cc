#include <troika/base/text.h>
#include <troika/launch/exit_report.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string encode(const ExitReport& report) {
  Json json;
  if (report.failure) {
    json["error"] = encode(*report.failure);
  } else {
    json["result"] = report.result;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ExitReport decode_exit_report(std::string_view line) {
  try {
    const Json json = Json::parse(line);
    if (json.contains("result")) return {std::nullopt, json.at("result")};
    Failure failure = decode_failure(json.at("error").get<std::string>());
    if (failure.message.empty()) throw DataError("a rank's report says nothing: " + quote(line));
    return {std::move(failure), ""};
  } catch (const Json::exception&) {
    throw DataError("a rank's report is malformed: " + quote(line));
  }
}

int report_descriptor(const Environment& environment) {
  const auto launcher = environment.number("TROIKA_LAUNCHER_PID");
  const auto number = environment.number("TROIKA_REPORT_FD");
  if (!launcher || !number) return -1;
  ucred maker{};
  socklen_t size = sizeof(maker);
  if (getsockopt(*number, SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0) return -1;
  constexpr pid_t kOutside = 0;  // of this process's pid namespace
  return maker.pid == *launcher || maker.pid == kOutside ? *number : -1;
}

Reporter::Reporter(const Environment& environment) : socket_(report_descriptor(environment)) {
  // Processes that the rank itself starts shall not hold the line open.
  if (connected()) fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
}

void Reporter::result(std::string_view json) {
  check(Json::accept(json), "a rank's result is not JSON");
  send({std::nullopt, std::string(json)});
}

void Reporter::error(const std::exception& error) {
  send({failure_of(error), ""});
}

void Reporter::send(const ExitReport& report) {
  const std::string line = encode(report);
  std::string_view rest = line;
  while (socket_.valid() && !rest.empty()) {
    const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // the launcher is gone, and nobody is left to be told
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  socket_.reset();
}

}  // namespace troika
