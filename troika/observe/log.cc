#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <troika/observe/log.h>
#include <troika/observe/progress.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>

namespace troika {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

LogLevel from_spdlog(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return LogLevel::kError;
  if (level == spdlog::level::warn) return LogLevel::kWarning;
  return level == spdlog::level::info ? LogLevel::kInfo : LogLevel::kDebug;
}

std::string_view prefix_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    case LogLevel::kInfo:
    case LogLevel::kOff:
      break;
  }
  return "";
}

// What stands in front of level and message, as spdlog's pattern. A rank is a number, so nothing
// needs escaping.
std::string pattern_of(const LogOptions& options) {
  std::string pattern = options.level == LogLevel::kDebug ? "%H:%M:%S.%f " : "";
  if (options.rank) pattern += "[rank " + std::to_string(*options.rank) + "] ";
  return pattern;
}

class FileDescriptorSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileDescriptorSink(int fd)
      : fd_(fd), can_redraw_(progress_style(fd) == ProgressStyle::kTerminal) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t front;
    formatter_->format(message, front);
    std::string text = can_redraw_ ? "\r\x1b[K" : "";
    text.append(front.data(), front.size());
    text += prefix_of(from_spdlog(message.level));
    text.append(message.payload.data(), message.payload.size());
    text += '\n';
    // A log that cannot be written has nobody left to tell.
    [[maybe_unused]] const ssize_t written = ::write(fd_, text.data(), text.size());
  }
  void flush_() override {}

 private:
  int fd_;
  bool can_redraw_;
};

class WriterSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WriterSink(decltype(LogOptions::writer) writer) : writer_(std::move(writer)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    writer_(from_spdlog(message.level), {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}

 private:
  decltype(LogOptions::writer) writer_;
};

std::shared_ptr<spdlog::logger> logger_of(const LogOptions& options) {
  std::shared_ptr<spdlog::sinks::sink> sink;
  if (options.writer) {
    sink = std::make_shared<WriterSink>(options.writer);
  } else {
    sink = std::make_shared<FileDescriptorSink>(options.file_descriptor);
  }
  auto logger = std::make_shared<spdlog::logger>("troika", std::move(sink));
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      pattern_of(options), spdlog::pattern_time_type::local, ""));
  logger->set_level(to_spdlog(options.level));
  return logger;
}

// Holds the logger in use: at first that of a program which configures nothing.
class SharedLogger {
 public:
  static SharedLogger& instance() {
    static SharedLogger shared;
    return shared;
  }
  void set(std::shared_ptr<spdlog::logger> logger) {
    const std::lock_guard lock(mutex_);
    logger_ = std::move(logger);
  }
  [[nodiscard]] std::shared_ptr<spdlog::logger> get() {
    const std::lock_guard lock(mutex_);
    return logger_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_ = logger_of({.level = LogLevel::kWarning});
};

}  // namespace

void configure_log(const LogOptions& options) {
  SharedLogger::instance().set(logger_of(options));
}

void log(LogLevel level, std::string_view message) {
  const std::shared_ptr<spdlog::logger> logger = SharedLogger::instance().get();
  if (level == LogLevel::kOff || !logger->should_log(to_spdlog(level))) return;
  logger->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace troika
