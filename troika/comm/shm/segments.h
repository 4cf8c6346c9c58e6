// Memory that a member has allocated for all: arenas. Its owner sends each file to every peer,
// which maps it.
#pragma once

#include <troika/comm/shm/attach.h>
#include <troika/comm/shm/collective.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace troika::shm {

class Segments {
 public:
  Segments(std::vector<std::optional<PeerConnection>>& connections, int index)
      : connections_(&connections), index_(index) {}
  // Drops the connections; memory that is in use may stay.
  void disconnect();

  // Returns zeroed memory that peers can read and write. It is freed with the last handle, and the
  // peers release it when an operation next names a new one. Returns null when it cannot be sent to
  // a peer. Throws StorageError when there is no room for it.
  [[nodiscard]] static std::shared_ptr<std::byte> allocate(
      const std::shared_ptr<Segments>& segments, std::size_t bytes);
  // Returns the location of [data, data + bytes), if it lies in one of this member's segments.
  [[nodiscard]] std::optional<Location> locate(const std::byte* data, std::size_t bytes);
  // Returns a member's segment, mapped here. Throws TimedOut, Broken, StorageError where it cannot
  // be mapped.
  [[nodiscard]] std::byte* find(int member, std::uint32_t segment, const Deadline& deadline);
  // Receives the messages that the member has sent by now, so that it can go on sending: a
  // connection holds a few hundred. Returns false when the member is gone. Any thread.
  bool take_messages(int member);

 private:
  struct Own {
    std::size_t bytes;
    std::uint32_t segment;
  };
  struct Theirs {
    MemoryFile memory;
    std::exception_ptr error = {};  // why it is not mapped
    bool is_known = false;          // an operation has named it
  };
  using Key = std::pair<int, std::uint32_t>;  // member, segment
  // Requires the mutex to be held.
  bool take(int member);

  std::vector<std::optional<PeerConnection>>*
      connections_;  // guarded by the mutex; null once disconnected
  int index_;
  std::mutex mutex_;
  std::uint32_t allocated_ = 0;
  std::map<const std::byte*, Own> own_;  // by address
  std::map<Key, Theirs> theirs_;
  // The segments that their owners have released. Operations that failed there may still be reading
  // them here.
  std::vector<Key> released_;
};

}  // namespace troika::shm
