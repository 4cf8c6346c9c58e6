// Internal: counts the requests that a server refuses because they are none, so that the log says
// so once a minute and not once a request. Without clocks or connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika::detail {

// Not thread safe.
class RefusalNotice {
 public:
  // Records a request from `peer` that was refused for `reason`, at `now`, in seconds of any steady
  // clock. Returns the line for the log: at the first one, and then once a minute with how many
  // there were since.
  [[nodiscard]] std::optional<std::string> add(std::string_view peer, std::string_view reason,
                                               double now) {
    constexpr double kApart = 60;
    ++count_;
    if (last_ && now - *last_ < kApart) return std::nullopt;
    std::string line = "a request was refused: ";
    if (count_ > 1) line = std::to_string(count_) + " more requests were refused, the last one: ";
    line.append(reason);
    // A reason may name the peer.
    if (reason.find(peer) == std::string_view::npos)
      line.append(" (from ").append(peer).append(")");
    last_ = now;
    count_ = 0;
    return line;
  }

 private:
  std::uint64_t count_ = 0;  // since the last line
  std::optional<double> last_;
};

}  // namespace troika::detail
