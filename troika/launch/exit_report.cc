#include <troika/base/text.h>
#include <troika/launch/exit_report.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::json;

// A code that another process has sent, if it is one that we know.
ExitCode code_of(int number) {
  for (const ExitCode code :
       {ExitCode::kInternal, ExitCode::kUsage, ExitCode::kData, ExitCode::kRendezvous,
        ExitCode::kRankDied, ExitCode::kNonFinite, ExitCode::kStorage, ExitCode::kCheckpointed,
        ExitCode::kInterrupted}) {
    if (static_cast<int>(code) == number) return code;
  }
  throw DataError("exit code " + std::to_string(number) + " in a rank's report");
}

}  // namespace

std::string encode(const ExitReport& report) {
  Json json;
  if (report.failure) {
    json["error"] = {{"code", static_cast<int>(report.failure->code)},
                     {"message", report.failure->message},
                     {"hint", report.failure->hint},
                     {"secondary", report.failure->secondary}};
  } else {
    json["result"] = report.result;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ExitReport decode_exit_report(std::string_view line) {
  try {
    const Json json = Json::parse(line);
    if (json.contains("result")) return {std::nullopt, json.at("result")};
    const Json& error = json.at("error");
    return {Failure{code_of(error.at("code")), error.at("message"), error.at("hint"),
                    error.at("secondary")},
            ""};
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
