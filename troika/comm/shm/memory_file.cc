#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/shm/memory_file.h>
#include <troika/observe/machine.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace troika::shm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Reserved in pieces, so that members that reserve at the same time see each other's.
constexpr std::size_t kPiece = std::size_t{256} << 20;

[[noreturn]] void refuse(std::size_t bytes, int error) {
  throw StorageError(
      "cannot reserve " + format_bytes(bytes) + " of shared memory: " + std::strerror(error),
      error == ENOSPC || error == ENOMEM
          ? "free some memory, or raise the limit of the container or of tmpfs"
      : error == EFBIG
          ? "a process may not write files as large, and shared memory is one to the kernel: raise "
            "the limit, as by `ulimit -f unlimited`"
          : "use the engine gloo (comm.engine, SessionOptions::engine)");
}

// The kernel would not refuse: it ends processes until there is room.
void check_room(std::size_t wanted, std::size_t whole) {
  const auto available = available_memory();
  if (!available || wanted <= *available) return;
  throw StorageError("cannot reserve " + format_bytes(whole) + " of shared memory: " +
                         format_bytes(*available) + " are left on this host, or in this container",
                     "free some memory, or raise the limit of the container");
}

}  // namespace

MemoryFile::MemoryFile(UniqueFd file, std::size_t bytes) : file_(std::move(file)), size_(bytes) {
  void* address = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (address == MAP_FAILED) refuse(bytes, errno);
  data_ = static_cast<std::byte*>(address);
  // Where the system has huge pages for memory files; a hint, so a refusal does not matter.
  if (size_ >= kHugePage) (void)madvise(data_, size_, MADV_HUGEPAGE);
}

MemoryFile MemoryFile::create(std::size_t bytes) {
  check_room(bytes, bytes);
  UniqueFd file(memfd_create("troika", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) refuse(bytes, errno);
  MemoryFile memory(std::move(file), bytes);
  // After the hint above, so that what is reserved is huge pages.
  for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
    const std::size_t piece = std::min(kPiece, bytes - begin);
    if (begin > 0) check_room(piece, bytes);
    const int error = reserve_space(memory.descriptor(), begin, piece);
    if (error != 0) refuse(bytes, error);
  }
  // Sealed before any peer maps it: an owner that could still shorten the file would end its
  // readers with SIGBUS.
  if (fcntl(memory.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    refuse(bytes, errno);
  }
  return memory;
}

MemoryFile MemoryFile::attach(UniqueFd file, std::size_t bytes) {
  struct stat facts {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &facts) != 0 || seals < 0) refuse(bytes, errno);
  // Checked before it is mapped. The size is worth nothing without the seal: the peer could shorten
  // the file behind this check.
  if ((seals & F_SEAL_SHRINK) == 0 || facts.st_size < 0 ||
      static_cast<std::size_t>(facts.st_size) < bytes) {
    throw DataError("a peer's shared memory is not what it announced");
  }
  MemoryFile memory(std::move(file), bytes);
  memory.close_descriptor();
  return memory;
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace troika::shm
