// The memory of a file that two processes of one host map.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <troika/rpc/body_chunks.h>
#include <troika/rpc/segment.h>
#include <unistd.h>

#include <cstring>

namespace troika::detail {
namespace {

constexpr int kNeededSeal = F_SEAL_SHRINK;

// Returns whether this process may write so much to a file; a signal would end it beyond.
bool within_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  return limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

std::uint64_t size_of(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 && facts.st_size > 0 ? static_cast<std::uint64_t>(facts.st_size)
                                                       : 0;
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::create() {
  UniqueFd file(memfd_create("troika-rpc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || fcntl(file.get(), F_ADD_SEALS, kNeededSeal | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(file)));
}

std::unique_ptr<SharedMemory> SharedMemory::adopt(UniqueFd file) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kNeededSeal) == 0) return nullptr;
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(file)));
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

bool SharedMemory::map(std::uint64_t least_bytes) {
  if (mapped_ >= least_bytes) return true;
  const std::uint64_t size = size_of(file_.get());
  if (size < least_bytes || size > kMostSegmentBytes) return false;
  void* const address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (address == MAP_FAILED) return false;
  if (data_ != nullptr) munmap(data_, mapped_);
  data_ = static_cast<std::byte*>(address);
  mapped_ = size;
  // A hint, for where the system has huge pages for such files.
  static_cast<void>(madvise(data_, mapped_, MADV_HUGEPAGE));
  return true;
}

bool SharedMemory::reserve(std::uint64_t bytes) {
  if (bytes <= reserved_) return true;
  if (bytes > kMostSegmentBytes || !within_limit(bytes)) return false;
  const bool grows = size_of(file_.get()) < bytes;
  if (grows && ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) return false;
  // Mapped first, for the hint about huge pages to count.
  if (!map(bytes) || reserve_space(file_.get(), reserved_, bytes - reserved_) != 0) return false;
  reserved_ = bytes;
  return true;
}

bool SharedMemory::write(std::span<const std::span<const std::byte>> parts) {
  const std::uint64_t bytes = total_bytes(parts);
  const std::lock_guard lock(mutex_);
  if (!reserve(bytes)) return false;
  std::byte* to = data_;
  for (const auto& part : parts) {
    if (!part.empty()) std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  return true;
}

bool SharedMemory::read(std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  if (!map(into.size())) return false;
  if (!into.empty()) std::memcpy(into.data(), data_, into.size());
  return true;
}

}  // namespace troika::detail
