#include <troika/base/milliseconds.h>
#include <troika/launch/output.h>
#include <troika/observe/progress.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace troika {
namespace {

// What POSIX promises that a pipe takes at once when it is writable at all.
constexpr std::size_t kAtOnce = 4096;
constexpr std::size_t kLongestLine = 1U << 20;

}  // namespace

OutputSink::OutputSink(int descriptor)
    : descriptor_(descriptor),
      terminal_(isatty(descriptor) == 1),
      can_redraw_(progress_style(descriptor) == ProgressStyle::kTerminal) {}

void OutputSink::push(std::string_view text) {
  if (text.empty()) return;
  pending_ += text;
  in_line_ = text.back() != '\n';
}

void OutputSink::begin_line() {
  if (in_line_) push("\n");
}

void OutputSink::clear_line() {
  if (can_redraw_) push("\r\x1b[K");
}

void OutputSink::write_some() {
  // Ends on a line's end where one is in reach, so that others who write there see whole lines.
  std::size_t size = std::min(pending_.size(), kAtOnce);
  const std::size_t line_end = pending_.rfind('\n', size - 1);
  if (size < pending_.size() && line_end != std::string::npos) size = line_end + 1;
  const ssize_t written = write(descriptor_, pending_.data(), size);
  if (written >= 0) {
    pending_.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EINTR && errno != EAGAIN) {
    pending_.clear();
  }
}

void OutputSink::flush(const Deadline& deadline) {
  while (has_pending()) {
    pollfd writable{descriptor_, POLLOUT, 0};
    const int ready = poll(&writable, 1, poll_milliseconds(deadline.left()));
    if (ready == 0) return;
    if (ready > 0) write_some();
  }
}

LineRelay::LineRelay(UniqueFd from, OutputSink& to, std::string prefix)
    : from_(std::move(from)), to_(&to), prefix_(std::move(prefix)) {
  fcntl(from_.get(), F_SETFL, fcntl(from_.get(), F_GETFL) | O_NONBLOCK);
}

void LineRelay::read_some() {
  std::array<char, 65536> buffer;
  const ssize_t size = read(from_.get(), buffer.data(), buffer.size());
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (size <= 0) return end();
  has_read_ = true;
  partial_.append(buffer.data(), static_cast<std::size_t>(size));
  std::size_t start = 0;
  for (std::size_t at; (at = partial_.find('\n', start)) != std::string::npos; start = at + 1) {
    forward(std::string_view(partial_).substr(start, at + 1 - start));
  }
  partial_.erase(0, start);
  if (partial_.size() > kLongestLine) {
    forward(partial_);
    partial_.clear();
  }
}

bool LineRelay::has_anything() const {
  pollfd readable{from_.get(), POLLIN, 0};
  return has_read_ || (open() && poll(&readable, 1, 0) > 0 && (readable.revents & POLLIN) != 0);
}

void LineRelay::finish() {
  while (open()) {
    pollfd readable{from_.get(), POLLIN, 0};
    if (poll(&readable, 1, 0) <= 0) return end();
    read_some();
  }
}

void LineRelay::forward(std::string_view line) {
  if (!prefix_.empty()) {
    to_->begin_line();
    to_->clear_line();
    to_->push(prefix_);
  }
  to_->push(line);
}

void LineRelay::end() {
  if (!partial_.empty()) forward(partial_);
  if (!partial_.empty() && !prefix_.empty()) to_->push("\n");
  partial_.clear();
  from_.reset();
}

}  // namespace troika
