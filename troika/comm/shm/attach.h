// How the members of a shared-memory group find each other's memory: over Unix sockets in the
// abstract namespace, whose random names they exchange elsewhere. Members who cannot reach each
// other's socket, or not each other's memory, do not share a host, whatever their names say.
#pragma once

#include <troika/base/file.h>
#include <troika/base/time.h>
#include <troika/comm/shm/board.h>

#include <poll.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika::shm {

// A listening socket with a random name, which only processes of this user are let in through.
class Door {
 public:
  Door();
  // To be told to the peers.
  [[nodiscard]] const std::string& name() const { return name_; }
  // The next caller. Throws Late without one by the deadline.
  [[nodiscard]] UniqueFd answer(const Deadline& deadline) const;

 private:
  std::string name_;
  UniqueFd socket_;
};

// Calls at a peer's door; invalid if there is none of this name on this host.
[[nodiscard]] UniqueFd call_at(const std::string& door);

// A connection to a peer: carries the descriptors of memory files, in order, and tells of its
// death.
class Wire {
 public:
  enum class Watch { kProcess, kConnection };
  explicit Wire(UniqueFd socket, Watch watch = Watch::kProcess);

  // Sends a word with a descriptor, or none (-1). Never blocks: the first few hundred fit into the
  // socket. False when the peer is gone or does not read.
  [[nodiscard]] bool send(std::uint64_t key, std::uint64_t value, int descriptor) const;
  struct Parcel {
    std::uint64_t key = 0;
    std::uint64_t value = 0;
    UniqueFd descriptor;  // invalid where none was sent, or this process has too many open
    bool is_cut = false;  // the latter
  };
  // The next parcel. Throws Late by the deadline, Broken when the peer is gone.
  [[nodiscard]] Parcel receive(int member, const Deadline& deadline) const;
  // The next, if one is there. Throws Broken when the peer is gone.
  [[nodiscard]] std::optional<Parcel> take() const;
  // False where none comes by the deadline, unless the peer is gone.
  [[nodiscard]] bool await_parcel(const Deadline& deadline) const;
  // For poll(2): tells of parcels, and of the end of the connection.
  [[nodiscard]] pollfd parcels() const { return {socket_.get(), POLLIN, 0}; }

  // Tells that the peer's process has ended: by its pidfd, or, where that cannot be had, by the end
  // of the connection. For poll(2): parcels that arrive are no news of it.
  [[nodiscard]] pollfd death() const {
    return death_.valid() ? pollfd{death_.get(), POLLIN, 0} : pollfd{socket_.get(), 0, 0};
  }
  // Whether the peer's process, or its connection, has ended by now.
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] bool watches_process() const { return death_.valid(); }
  // The peer's process, 0 where it lies in another name space.
  [[nodiscard]] int pid() const { return pid_; }

 private:
  UniqueFd socket_;
  int pid_ = 0;
  UniqueFd death_;
};

// All boards of a group, and the wires to its members (invalid for `index`). Collective: `doors`
// are the names of all, by member. Throws Late naming who does not come.
struct Attached {
  std::vector<Board> boards;
  std::vector<std::optional<Wire>> wires;
};
[[nodiscard]] Attached attach(const Door& own, const std::vector<std::string>& doors, int index,
                              const Shape& shape, const Deadline& deadline);

}  // namespace troika::shm
