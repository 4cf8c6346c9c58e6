// Memory that a member has allocated for all: arenas. Its owner sends each file to every peer, who
// maps it when an operation first names it.
#pragma once

#include <troika/comm/shm/attach.h>
#include <troika/comm/shm/collective.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace troika::shm {

class Segments {
 public:
  Segments(std::vector<std::optional<Wire>>& wires, int index) : wires_(&wires), index_(index) {}
  // The wires go; memory that is in use may stay.
  void disconnect();

  // Zeroed memory that peers can read and write; it goes when the last handle does, and the peers
  // let go of it when they next meet a new one. Null when a peer cannot be told. Throws
  // StorageError when there is no room for it.
  [[nodiscard]] static std::shared_ptr<std::byte> allocate(
      const std::shared_ptr<Segments>& segments, std::size_t bytes);
  // Where [data, data + bytes) lies, if it lies in one of this member's segments.
  [[nodiscard]] std::optional<Location> locate(const std::byte* data, std::size_t bytes);
  // A member's segment, mapped here. Throws Late, Broken.
  [[nodiscard]] std::byte* find(int member, std::uint32_t segment, const Deadline& deadline);

 private:
  struct Own {
    std::size_t bytes;
    std::uint32_t segment;
  };
  std::vector<std::optional<Wire>>* wires_;  // guarded by the mutex; null once disconnected
  int index_;
  std::mutex mutex_;
  std::uint32_t allocated_ = 0;
  std::map<const std::byte*, Own> own_;                         // by address
  std::map<std::pair<int, std::uint32_t>, MemoryFile> theirs_;  // by member and segment
};

}  // namespace troika::shm
