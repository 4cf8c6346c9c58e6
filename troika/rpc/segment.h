// Internal: memory that two processes of one host pass large bodies through, in place of a socket.
//
// A client makes an anonymous file of memory (memfd) and a listening socket of random name in
// /dev/shm, and tells the server that name. That the server can connect to it says that both are
// on one host; then the file passes through the socket, and the name is removed. The file is
// sealed against being shortened: a process that maps it can be sure of its size, and meets no
// SIGBUS.
// Both sides copy, so what a peer writes meanwhile changes nothing that was checked here. The pages
// stay from call to call.
#pragma once

#include <troika/base/file.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace troika::detail {

// Bodies from this size on pass through a segment, up to the largest size.
inline constexpr std::uint64_t kLeastSegmentBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMostSegmentBytes = std::uint64_t{1} << 30;
[[nodiscard]] constexpr bool suits_segment(std::uint64_t bytes) {
  return bytes >= kLeastSegmentBytes && bytes <= kMostSegmentBytes;
}

inline constexpr std::size_t kSegmentNameBytes = 32;
// Returns whether a text may be a segment's name: 32 digits of the hexadecimal system.
[[nodiscard]] bool is_segment_name(std::string_view name);

// A file of memory that is mapped here, and grows when there is more to write. Thread safe.
class SharedMemory {
 public:
  // Makes a file. Returns null where the system has none.
  [[nodiscard]] static std::unique_ptr<SharedMemory> create();
  // Takes the file of a peer. Returns null if it is not sealed against being shortened.
  [[nodiscard]] static std::unique_ptr<SharedMemory> adopt(UniqueFd file);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] int descriptor() const { return file_.get(); }
  // Writes the parts end to end. Returns false if there is no room for them.
  [[nodiscard]] bool write(std::span<const std::span<const std::byte>> parts);
  // Reads as many bytes. Returns false if there are fewer.
  [[nodiscard]] bool read(std::span<std::byte> into);

 private:
  explicit SharedMemory(UniqueFd file) : file_(std::move(file)) {}
  // Maps all of the file, if it has at least so many bytes.
  [[nodiscard]] bool map(std::uint64_t least_bytes);
  // Maps at least so many bytes, with pages that are there: a write to them cannot fail.
  [[nodiscard]] bool reserve(std::uint64_t bytes);

  std::mutex mutex_;
  UniqueFd file_;
  std::byte* data_ = nullptr;
  std::uint64_t mapped_ = 0;    // bytes
  std::uint64_t reserved_ = 0;  // bytes that have pages, by our own doing
};

// A segment at the client that has made it.
class OwnSegment {
 public:
  // Makes a segment that a process of this user can find. Returns null where that cannot be.
  // Removes the names that killed processes have left behind.
  [[nodiscard]] static std::unique_ptr<OwnSegment> create();
  ~OwnSegment() { hide(); }
  OwnSegment(const OwnSegment&) = delete;
  OwnSegment& operator=(const OwnSegment&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  // Passes the file to the process that has connected, and hides the segment. Returns false if
  // none has, or one of another user.
  [[nodiscard]] bool hand_over();
  [[nodiscard]] SharedMemory& memory() const { return *memory_; }

 private:
  OwnSegment(std::string name, UniqueFd listener, std::unique_ptr<SharedMemory> memory);
  // Removes the name, so that no other process finds it.
  void hide();

  std::string name_;
  UniqueFd listener_;  // until it is handed over
  UniqueFd peer_;      // tells the peer for how long this segment lives
  std::unique_ptr<SharedMemory> memory_;
};

// A segment at a server. Thread safe.
class PeerSegment {
 public:
  // Connects to the segment of another process. Returns null if it is not here, or belongs to
  // another user.
  [[nodiscard]] static std::unique_ptr<PeerSegment> find(std::string_view name);

  // Returns the memory, or null if the client has not handed it over.
  [[nodiscard]] SharedMemory* memory();
  // Returns whether the client has ended, or has dropped the segment.
  [[nodiscard]] bool is_orphan() const;

 private:
  explicit PeerSegment(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
  std::mutex mutex_;
  std::unique_ptr<SharedMemory> memory_;  // from the first call of memory() on
};

}  // namespace troika::detail
