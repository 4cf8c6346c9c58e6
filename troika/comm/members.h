// The members of a group as messages name them, and the board on which a member that gives up
// leaves the reason, so that its peers can tell the cause from its consequences.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/reason.h>
#include <troika/rendezvous/store.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct Members {
  std::string axis;
  std::vector<int> ranks;                    // world ranks, by position
  std::vector<std::string> hosts;            // names, by position
  std::vector<std::string> identities = {};  // of the hosts, as host_identity() tells them apart
  std::vector<int> pids = {};                // as each process knows itself
  int index = 0;                             // this process
  std::uint64_t generation = 0;
  // Where the flight recorders of the ranks of this host lie; empty if there are none.
  std::filesystem::path recorders = {};

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  // "rank 3 (host b, pid 4711)"
  [[nodiscard]] std::string name(int member) const;
  // Whether a member's process can be looked at from here.
  [[nodiscard]] bool on_this_host(int member) const;
};

class ReasonBoard {
 public:
  // `store` is this board's own connection, behind a prefix of its own.
  ReasonBoard(Store store, int index) : store_(std::move(store)), index_(index) {}

  // Why this member gives up. Thread-safe, like the others; failures of the store are ignored, as
  // they come with an error that matters more.
  void post(const Reason& reason) noexcept;
  // Why `member` gave up, if it says so in time.
  [[nodiscard]] std::optional<Reason> reason_of(int member, Seconds patience) noexcept;
  // Who gave up before all others, if anyone has, this member included.
  struct Posted {
    int member;
    Reason reason;
  };
  [[nodiscard]] std::optional<Posted> first() noexcept;

 private:
  Store store_;
  int index_;
};

}  // namespace troika
