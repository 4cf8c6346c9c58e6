// How the members of a shared-memory group find each other's memory: over Unix sockets in the
// abstract namespace, whose random names they exchange elsewhere. Members who cannot reach each
// other's socket, or not each other's memory, do not share a host, whatever their names say.
#pragma once

#include <troika/base/file.h>
#include <troika/base/time.h>
#include <troika/comm/shm/control_block.h>

#include <poll.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika::shm {

// A listening socket with a random name, which only processes of this user are let in through.
class Listener {
 public:
  Listener();
  // To be told to the peers.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Accepts the next connection. Throws TimedOut without one by the deadline.
  [[nodiscard]] UniqueFd accept(const Deadline& deadline) const;

 private:
  std::string name_;
  UniqueFd socket_;
};

// Connects to a peer's listener; invalid if there is none of this name on this host.
[[nodiscard]] UniqueFd connect_to_listener(const std::string& name);

// A connection to a peer: carries the descriptors of memory files, in order, and tells of the exit
// of its process.
class PeerConnection {
 public:
  enum class Watch { kProcess, kConnection };
  explicit PeerConnection(UniqueFd socket, Watch watch = Watch::kProcess);

  // Sends a message with a descriptor, or none (-1). Never blocks: the first few hundred fit into
  // the socket. False when the peer is gone or does not read.
  [[nodiscard]] bool send(std::uint64_t key, std::uint64_t value, int descriptor) const;
  struct FdMessage {
    std::uint64_t key = 0;
    std::uint64_t value = 0;
    UniqueFd descriptor;        // invalid where none was sent, or this process has too many open
    bool is_truncated = false;  // the latter
  };
  // The next message. Throws TimedOut by the deadline, Broken when the peer is gone.
  [[nodiscard]] FdMessage receive(int member, const Deadline& deadline) const;
  // The next, if one is there. Throws Broken when the peer is gone.
  [[nodiscard]] std::optional<FdMessage> try_receive() const;
  // False where none comes by the deadline, unless the peer is gone.
  [[nodiscard]] bool await_message(const Deadline& deadline) const;
  // For poll(2): ready when there are messages, and at the end of the connection.
  [[nodiscard]] pollfd message_fd() const { return {socket_.get(), POLLIN, 0}; }

  // Tells that the peer's process has ended: by its pidfd, or, where that cannot be had, by the end
  // of the connection. For poll(2): messages that arrive do not make it ready.
  [[nodiscard]] pollfd exit_fd() const {
    return exit_fd_.valid() ? pollfd{exit_fd_.get(), POLLIN, 0} : pollfd{socket_.get(), 0, 0};
  }
  // Whether the peer's process, or its connection, has ended by now.
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] bool watches_process() const { return exit_fd_.valid(); }
  // The peer's process, 0 where it lies in another name space.
  [[nodiscard]] int pid() const { return pid_; }

 private:
  UniqueFd socket_;
  int pid_ = 0;
  UniqueFd exit_fd_;
};

// All control blocks of a group, and the connections to its members (invalid for `index`).
// Collective: `names` are those of all listeners, by member. Throws TimedOut naming the members
// that do not come.
struct Attached {
  std::vector<ControlBlock> control_blocks;
  std::vector<std::optional<PeerConnection>> connections;
};
[[nodiscard]] Attached attach(const Listener& own, const std::vector<std::string>& names, int index,
                              const Shape& shape, const Deadline& deadline);

}  // namespace troika::shm
