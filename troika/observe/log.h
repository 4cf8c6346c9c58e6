// The log: one line a message, on stderr unless told otherwise. It is the only state that all of
// troika shares. A program that configures nothing gets warnings and errors, as "warning: MESSAGE":
// that a damaged checkpoint was skipped must not pass in silence. LogLevel::kOff silences them.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

namespace troika {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // and all above it
  std::optional<int> rank = {};      // written in front of each line: "[rank 1] "
  // The descriptor that lines are written to. A line is one write(2), so that lines of ranks that
  // share a terminal do not mix. On a terminal it first wipes the progress line, which the next
  // update draws again.
  int file_descriptor = 2;
  // The function that gets each message instead, if set: for a program that has a log of its own.
  // Never called by two threads at once. It must not log.
  std::function<void(LogLevel, std::string_view message)> writer = {};
};

// Configures the log. Thread-safe, as is all logging. The lines read "[rank 1] warning: MESSAGE";
// messages of level kInfo go without the level. At level kDebug each line starts with the time of
// day.
void configure_log(const LogOptions& options);

void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) {
  log(LogLevel::kDebug, message);
}
inline void log_info(std::string_view message) {
  log(LogLevel::kInfo, message);
}
inline void log_warning(std::string_view message) {
  log(LogLevel::kWarning, message);
}
inline void log_error(std::string_view message) {
  log(LogLevel::kError, message);
}

}  // namespace troika
