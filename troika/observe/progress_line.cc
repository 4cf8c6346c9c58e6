// Draws the progress line: on a terminal in place, elsewhere a line now and then.
#include <sys/ioctl.h>
#include <troika/observe/progress.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>

namespace troika {

ProgressStyle progress_style(int fd) {
  const char* terminal = std::getenv("TERM");
  const bool can_redraw = terminal != nullptr && *terminal != '\0' &&
                          std::string_view(terminal) != "dumb" && ::isatty(fd) == 1;
  return can_redraw ? ProgressStyle::kTerminal : ProgressStyle::kLines;
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

ProgressOptions progress_options(int fd) {
  ProgressOptions options;
  options.style = progress_style(fd);
  options.width = [fd] { return terminal_width(fd); };
  return options;
}

ProgressLine::ProgressLine(std::ostream& output, ProgressOptions options)
    : output_(output), options_(std::move(options)) {}

ProgressLine::~ProgressLine() {
  try {
    end_line();
    // A stream set to throw; there is nothing left to draw. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (...) {
  }
}

bool ProgressLine::due() const {
  if (options_.style == ProgressStyle::kSilent) return false;
  if (!drawn_at_) return true;
  const Seconds interval = options_.style == ProgressStyle::kTerminal ? options_.redraw_interval
                                                                      : options_.line_interval;
  return options_.now() - *drawn_at_ >= interval;
}

void ProgressLine::draw(const std::vector<std::string>& fields) {
  if (options_.style == ProgressStyle::kSilent || fields.empty()) return;
  const bool in_place = options_.style == ProgressStyle::kTerminal;
  // The last column stays free: some terminals wrap as soon as it is written.
  const std::size_t room =
      in_place ? static_cast<std::size_t>(std::max(1, options_.width() - 1)) : std::string::npos;
  std::string text = fields.front().substr(0, room);
  for (std::size_t i = 1; i < fields.size(); ++i) {
    if (fields[i].empty()) continue;
    if (text.size() + 2 + fields[i].size() > room) break;
    text += "  " + fields[i];
  }
  // One write, so that the line never shows half drawn.
  output_ << (in_place ? "\r" + text + "\x1b[K" : text + "\n") << std::flush;
  open_ = in_place;
  drawn_at_ = options_.now();
}

void ProgressLine::end_line() {
  if (open_) output_ << "\n" << std::flush;
  open_ = false;
}

}  // namespace troika
