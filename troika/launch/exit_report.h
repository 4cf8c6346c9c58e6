// A rank's exit report to the launcher that has started it: one line of JSON with the result or the
// error, written just before the rank ends.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/file.h>
#include <troika/rendezvous/environment.h>

#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The report of a rank: a failure, or a result (JSON, as the rank wrote it).
struct ExitReport {
  std::optional<Failure> failure;
  std::string result;
};

// Encode a report as one line with its newline, and decode it. decode throws DataError on anything
// else.
[[nodiscard]] std::string encode(const ExitReport& report);
[[nodiscard]] ExitReport decode_exit_report(std::string_view line);

// Returns the descriptor of the socket on which this process reports to the launcher of ours that
// has started it, perhaps through other programs. Returns -1 without such a launcher. Also -1 where
// a program between the two has closed the socket or has put another file in its place.
[[nodiscard]] int report_descriptor(const Environment& environment);

// The rank's end of the connection to the launcher.
class Reporter {
 public:
  // Takes over the report_descriptor(). Without one, the Reporter is not connected.
  explicit Reporter(const Environment& environment);

  [[nodiscard]] bool connected() const { return socket_.valid(); }
  // Report a result or an error: at most one of the two, once. Do nothing when not connected, or
  // when the launcher is gone. `json` is one JSON value; throws InternalError when it is not.
  void result(std::string_view json);
  void error(const std::exception& error);

 private:
  void send(const ExitReport& report);
  UniqueFd socket_;
};

}  // namespace troika
