// Memory that processes of one host share: an anonymous file (memfd) that is mapped here, and whose
// descriptor peers are sent. It has no name, so nothing is left behind by a process that is killed.
#pragma once

#include <troika/base/file.h>

#include <cstddef>

namespace troika::shm {

class MemoryFile {
 public:
  MemoryFile() = default;
  // `bytes` zeroed bytes, aligned to a page and reserved now: later writes cannot run out of memory
  // files (SIGBUS), and the pages lie near the thread that calls this. Large files ask for huge
  // pages. The size is sealed. Throws StorageError naming the size and what is exhausted.
  [[nodiscard]] static MemoryFile create(std::size_t bytes);
  // One that a peer has made, `bytes` long, to read and write. Throws StorageError; DataError where
  // the file is shorter than that, or its maker could still shorten it.
  [[nodiscard]] static MemoryFile attach(UniqueFd file, std::size_t bytes);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // To be sent to peers; of one's own files only.
  [[nodiscard]] int descriptor() const { return file_.get(); }
  // All peers have it: processes may have few descriptors, and memory is there without.
  void close_descriptor() { file_ = {}; }

 private:
  MemoryFile(UniqueFd file, std::size_t bytes);

  UniqueFd file_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace troika::shm
