// The text of the mark that a run leaves where it writes checkpoints, in a store that has
// no locks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Says which process has left a mark.
struct OwnerMark {
  std::string holder;     // "process 4711 on host a", for messages
  std::string processes;  // the same for processes that see each other by number
  std::int64_t pid = 0;
  std::string started;  // when that process was started, as /proc says it
  std::int64_t heartbeats = 0;

  bool operator==(const OwnerMark&) const = default;
};

// Returns the mark of this process.
[[nodiscard]] OwnerMark make_owner_mark();
// Write and read the text of a mark, a line a field. One that is no mark is read as nothing.
[[nodiscard]] std::string format_mark(const OwnerMark& mark);
[[nodiscard]] std::optional<OwnerMark> parse_mark(std::string_view text);
// Returns whether two marks are of one process, whatever their beats.
[[nodiscard]] bool is_of_one_process(const OwnerMark& a, const OwnerMark& b);
// Returns whether the process of a mark lives; nothing where it is not of this host.
[[nodiscard]] std::optional<bool> lives_here(const OwnerMark& mark);

}  // namespace troika
