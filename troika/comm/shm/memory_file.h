// Memory that processes of one host share: an anonymous file (memfd) that is mapped here, and whose
// descriptor is sent to peers. It has no name, so a process that is killed leaves nothing behind.
#pragma once

#include <troika/base/file.h>

#include <cstddef>

namespace troika::shm {

class MemoryFile {
 public:
  MemoryFile() = default;
  // Makes `bytes` zeroed bytes, aligned to a page and reserved now. Later writes cannot run out of
  // memory files (SIGBUS), and the pages lie near the thread that calls this. Large files ask for
  // huge pages. The size is sealed. Throws StorageError naming the size and what is exhausted.
  [[nodiscard]] static MemoryFile create(std::size_t bytes);
  // Maps a file that a peer has made, `bytes` long, to read and write. Throws StorageError;
  // DataError where the file is shorter than that, or its maker could still shorten it.
  [[nodiscard]] static MemoryFile attach(UniqueFd file, std::size_t bytes);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // Returns the descriptor, to be sent to peers. Only for files that this process has made.
  [[nodiscard]] int descriptor() const { return file_.get(); }
  // Closes the descriptor once all peers have it: processes may have few descriptors, and the
  // memory stays without.
  void close_descriptor() { file_ = {}; }

 private:
  MemoryFile(UniqueFd file, std::size_t bytes);

  UniqueFd file_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace troika::shm
