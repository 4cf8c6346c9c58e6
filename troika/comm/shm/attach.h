// Lets the members of a shared-memory group find each other's memory. They connect over Unix
// sockets in the abstract namespace, whose random names they exchange elsewhere. Members that
// cannot reach each other's socket, or not each other's memory, do not share a host, whatever their
// names say.
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

// A listening socket with a random name, which lets in only processes of this user.
class Listener {
 public:
  Listener();
  // Returns the name, to be sent to the peers.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Accepts the next connection. Throws TimedOut without one by the deadline.
  [[nodiscard]] UniqueFd accept(const Deadline& deadline) const;

 private:
  std::string name_;
  UniqueFd socket_;
};

// Connects to a peer's listener. Returns an invalid descriptor if there is none of this name on
// this host.
[[nodiscard]] UniqueFd connect_to_listener(const std::string& name);

// A connection to a peer. It carries the descriptors of memory files, in order, and reports the
// exit of the peer's process.
class PeerConnection {
 public:
  enum class Watch { kProcess, kConnection };
  explicit PeerConnection(UniqueFd socket, Watch watch = Watch::kProcess);

  // Sends a message with a descriptor, or none (-1). Never blocks: the first few hundred fit into
  // the socket. Returns false when the peer is gone or does not read.
  [[nodiscard]] bool send(std::uint64_t key, std::uint64_t value, int descriptor) const;
  struct FdMessage {
    std::uint64_t key = 0;
    std::uint64_t value = 0;
    UniqueFd descriptor;        // invalid where none was sent, or this process has too many open
    bool is_truncated = false;  // the latter
  };
  // Returns the next message. Throws TimedOut without one by the deadline, Broken when the peer is
  // gone.
  [[nodiscard]] FdMessage receive(int member, const Deadline& deadline) const;
  // Returns the next message, if one is there. Throws Broken when the peer is gone.
  [[nodiscard]] std::optional<FdMessage> try_receive() const;
  // Waits for a message. Returns false if none comes by the deadline, unless the peer is gone.
  [[nodiscard]] bool await_message(const Deadline& deadline) const;
  // Returns a descriptor for poll(2): ready when there are messages, and at the end of the
  // connection.
  [[nodiscard]] pollfd message_fd() const { return {socket_.get(), POLLIN, 0}; }

  // Returns a descriptor for poll(2), ready when the peer's process has ended: its pidfd, or, where
  // that cannot be had, the end of the connection. Messages that arrive do not make it ready.
  [[nodiscard]] pollfd exit_fd() const {
    return exit_fd_.valid() ? pollfd{exit_fd_.get(), POLLIN, 0} : pollfd{socket_.get(), 0, 0};
  }
  // Returns whether the peer's process, or its connection, has ended by now.
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] bool watches_process() const { return exit_fd_.valid(); }
  // Returns the peer's process, 0 where it lies in another name space.
  [[nodiscard]] int pid() const { return pid_; }

 private:
  UniqueFd socket_;
  int pid_ = 0;
  UniqueFd exit_fd_;
};

// All control blocks of a group, and the connections to its members (none for `index`). attach() is
// collective: `names` are those of all listeners, by member. It throws TimedOut naming the members
// that do not come.
struct Attached {
  std::vector<ControlBlock> control_blocks;
  std::vector<std::optional<PeerConnection>> connections;
};
[[nodiscard]] Attached attach(const Listener& own, const std::vector<std::string>& names, int index,
                              const Shape& shape, const Deadline& deadline);

}  // namespace troika::shm
