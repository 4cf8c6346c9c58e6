#include <fcntl.h>
#include <sys/mman.h>
#include <troika/base/counter_clock.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/short_copy.h>
#include <troika/base/time.h>
#include <troika/observe/recorder.h>
#include <troika/observe/recorder_format.h>
#include <troika/observe/saved_error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

namespace troika {
namespace {

using recorder_format::Header;
using recorder_format::Record;
using recorder_format::RecordState;

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

template <std::size_t kSize>
void fill_text(char (&field)[kSize], std::string_view text) {
  std::memset(field, 0, kSize);  // of a size that the compiler knows: a few stores
  copy_short(field, text);
}

Header& header_of(std::byte* mapping) {
  return *reinterpret_cast<Header*>(mapping);
}

Record& record_of(std::byte* mapping, std::uint32_t capacity, std::uint64_t sequence) {
  // A division takes longer than all the rest.
  const bool power_of_two = (capacity & (capacity - 1)) == 0;
  const std::uint64_t index =
      power_of_two ? (sequence - 1) & (capacity - 1) : (sequence - 1) % capacity;
  return reinterpret_cast<Record*>(mapping + sizeof(Header))[index];
}

// What every field is stored with: a thread that has been lapped may still be writing the record.
template <typename T>
void store(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}
template <typename T>
T load(T& field) {
  return std::atomic_ref<T>(field).load(std::memory_order_relaxed);
}

}  // namespace

std::shared_ptr<Recorder> Recorder::create(const std::filesystem::path& path, int rank,
                                           std::string_view host, std::uint32_t capacity) {
  if (capacity < 1 || capacity > recorder_format::kMaxCapacity) {
    throw UsageError("flight recorder: a capacity of " + std::to_string(capacity) +
                         " operations is out of range",
                     "choose 1 to " + std::to_string(recorder_format::kMaxCapacity));
  }
  // Written beside and renamed, so that nobody finds a header that is half written.
  std::filesystem::path temporary = path;
  temporary += ".new";
  const std::size_t size = recorder_format::file_size(capacity);
  const UniqueFd fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) throw_storage_error("create", temporary, errno);
  // Without reserved space, writing to the mapping on a full disk would raise SIGBUS.
  int error = reserve_space(fd.get(), 0, size);
  void* mapping = MAP_FAILED;
  if (error == 0) {
    mapping = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (mapping == MAP_FAILED) error = errno;
  }
  std::shared_ptr<Recorder> recorder;
  if (error == 0) {
    recorder.reset(new Recorder(mapping, size, rank, host, capacity));
    recorder->folder_ = path.parent_path();
    remove_saved_error(recorder->folder_, rank);
    if (::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
    throw_storage_error("create", path, error);
  }
  return recorder;
}

std::shared_ptr<Recorder> Recorder::none() {
  constexpr std::uint32_t kCapacity = 64;
  const std::size_t size = recorder_format::file_size(kCapacity);
  void* mapping = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  return std::shared_ptr<Recorder>(new Recorder(mapping, size, 0, "", kCapacity));
}

Recorder::Recorder(void* mapping, std::size_t size, int rank, std::string_view host,
                   std::uint32_t capacity)
    : mapping_(static_cast<std::byte*>(mapping)), size_(size), capacity_(capacity), rank_(rank) {
  Header& header = header_of(mapping_);
  std::memcpy(header.magic, recorder_format::kMagic.data(), sizeof(header.magic));
  header.version = recorder_format::kVersion;
  header.header_bytes = sizeof(Header);
  header.record_bytes = sizeof(Record);
  header.capacity = capacity;
  header.rank = rank;
  header.process_id = ::getpid();
  header.created = wall_nanoseconds();
  fill_text(header.host, host);
}

Recorder::~Recorder() {
  ::munmap(mapping_, size_);
}

std::uint64_t Recorder::take_number() noexcept {
  return std::atomic_ref(header_of(mapping_).count).fetch_add(1) + 1;
}

void Recorder::write(std::uint64_t sequence, const OperationFacts& facts) noexcept {
  Record& record = record_of(mapping_, capacity_, sequence);
  std::atomic_ref(record.sequence).store(0, std::memory_order_relaxed);
  // The fields below must not become visible before the zero above.
  std::atomic_thread_fence(std::memory_order_release);
  store(record.state, static_cast<std::uint32_t>(RecordState::kRunning));
  store(record.steps, std::uint32_t{0});
  store(record.started, wall_nanoseconds_by_counter());
  store(record.finished, std::int64_t{0});
  store(record.bytes, facts.bytes);
  store(record.sent, std::uint64_t{0});
  store(record.place, facts.place);
  store(record.generation, static_cast<std::uint32_t>(facts.generation));
  store(record.group, facts.group);
  store(record.signature, facts.signature);
  store(record.elements, facts.elements);
  fill_text(record.dtype, facts.dtype);
  fill_text(record.operation, facts.operation);
  fill_text(record.axis, facts.axis);
  fill_text(record.label, facts.label);
  std::atomic_ref(record.sequence).store(sequence, std::memory_order_release);
}

void Recorder::add_traffic(std::uint64_t sequence, std::uint64_t bytes,
                           std::uint32_t steps) noexcept {
  Record& record = record_of(mapping_, capacity_, sequence);
  if (std::atomic_ref(record.sequence).load(std::memory_order_acquire) != sequence) return;
  // An operation is carried out by one thread at a time; readers want whole values. To add with a
  // lock would wait until earlier stores, progress for peers among them, have left for the caches.
  if (bytes > 0) store(record.sent, load(record.sent) + bytes);
  if (steps > 0) store(record.steps, load(record.steps) + steps);
}

void Recorder::end(std::uint64_t sequence) noexcept {
  close(sequence, static_cast<std::uint32_t>(RecordState::kFinished));
}

void Recorder::fail(std::uint64_t sequence) noexcept {
  close(sequence, static_cast<std::uint32_t>(RecordState::kFailed));
}

void Recorder::close(std::uint64_t sequence, std::uint32_t state) noexcept {
  if (sequence == 0) return;
  Record& record = record_of(mapping_, capacity_, sequence);
  if (std::atomic_ref(record.sequence).load(std::memory_order_acquire) != sequence) return;
  store(record.finished, wall_nanoseconds_by_counter());
  std::atomic_ref(record.state).store(state, std::memory_order_release);
}

void Recorder::record_error(const std::exception_ptr& error) noexcept {
  if (folder_.empty()) return;
  try {
    std::rethrow_exception(error);
  } catch (const RendezvousError& told) {
    // Not under a lock: a file system that hangs must not hold up a second operation that fails.
    if (!error_saved_.exchange(true)) save_error(folder_, rank_, told);
  } catch (...) {  // whoever it reaches tells it. NOLINT(bugprone-empty-catch)
  }
}

std::uint64_t Recorder::count() const noexcept {
  return std::atomic_ref(header_of(mapping_).count).load(std::memory_order_relaxed);
}

std::filesystem::path recorder_path(const std::filesystem::path& folder, int rank) {
  return folder / ("flight-rank-" + std::to_string(rank) + ".bin");
}

}  // namespace troika
