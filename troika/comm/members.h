// The members of a group as messages name them, and the board on which a member that gives up
// leaves the reason, so that its peers can tell the cause from its consequences.
#pragma once

#include <troika/base/time.h>
#include <troika/rendezvous/store.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct Members {
  std::string axis;
  std::vector<int> ranks;          // world ranks, by position
  std::vector<std::string> hosts;  // names, by position
  int index = 0;                   // this process
  // Where the flight recorders of the ranks of this host lie; empty if there are none.
  std::filesystem::path recorders = {};

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  // "rank 3 on host b"
  [[nodiscard]] std::string name(int member) const;
  // "axis data (ranks 0 to 3)"
  [[nodiscard]] std::string group_name() const;
  // What a member's flight recorder says it does, or did last: "rank 3 on host b finished
  // all_reduce 'x' ... ago and began nothing since". Nothing if it cannot be read.
  [[nodiscard]] std::optional<std::string> last_act(int member) const;
};

class ReasonBoard {
 public:
  // `store` is this board's own connection, behind a prefix of its own.
  ReasonBoard(Store store, int index) : store_(std::move(store)), index_(index) {}

  // Why this member gives up. Thread-safe, like the others; failures of the store are ignored, as
  // they come with an error that matters more.
  void post(const std::string& reason) noexcept;
  // Why `member` gave up, if it says so in time.
  [[nodiscard]] std::optional<std::string> reason_of(int member, Seconds patience) noexcept;

 private:
  Store store_;
  int index_;
};

}  // namespace troika
