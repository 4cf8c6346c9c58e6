// The memory that a member of a shared-memory group publishes to the others: a ring of its
// operations, each with how far it has come, and the bytes that go with them. A control block is
// written by its owner and read by all, but for two words: a receiver stores in Channel::read how
// far it has read, and a peer that wakes the owner adds to its futex word. Its memory holds no
// pointers, as it is mapped at another address in each process.
//
// Layout (all members of a group have the same Shape): Head, Operation[ring], slots, large slots,
// two windows in, two windows out, a Channel to each member.
#pragma once

#include <troika/comm/shm/memory_file.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace troika::shm {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
constexpr std::size_t kCacheLine = 64;  // bytes that caches keep together

// The progress of a member in an operation: the operation's number, and a phase that only grows. It
// is one 64-bit word, so that one load reads both.
struct Progress {
  static constexpr int kPhaseBits = 24;
  static constexpr std::uint64_t kDone = (std::uint64_t{1} << kPhaseBits) - 1;
  [[nodiscard]] static constexpr std::uint64_t at(std::uint64_t operation, std::uint64_t phase) {
    return operation << kPhaseBits | phase;
  }
};

// The place of a member's contribution to an operation.
enum class Placement : std::uint32_t {
  kNone,       // it gives nothing
  kSlot,       // in the operation's slot of the ring
  kLargeSlot,  // in one of the few large slots: `offset` is its index
  kMemory,     // in memory that it has allocated for all: `segment`, `offset`
  kStream      // passes through the windows, piece by piece
};

// An entry of the ring. All but `progress` is written before the progress that announces it, and
// read after.
struct alignas(2 * kCacheLine) Operation {
  std::atomic<std::uint64_t> progress;
  std::uint64_t signature;  // of what all members must have in common
  std::uint64_t bytes;      // of the contribution
  std::uint64_t offset;
  std::uint32_t segment;
  Placement placement;
  // Short contributions, which come with the entry: in the same line of the cache, or in the next
  // ones.
  std::byte tiny[24];
  std::byte small[2 * kCacheLine];
  char name[kCacheLine];  // "all_reduce 'loss'", zero-terminated; for error messages
};
static_assert(offsetof(Operation, small) == kCacheLine);

// A one-way channel from the control block's owner to one member: bytes in pieces, in order.
struct alignas(kCacheLine) Channel {
  std::atomic<std::uint64_t> written;                   // by the owner, in all
  alignas(kCacheLine) std::atomic<std::uint64_t> read;  // by the receiver, in all
};

// The side that issues the fence that keeps a wake-up from being lost; shm_group.h argues how.
enum class Fences : std::uint32_t {
  kOnPublish,  // the member that publishes
  kOnWait      // the member that goes to sleep, for all processes: where membarrier(2) is allowed
};
// Makes every thread of the group's processes pass a full fence.
void fence_everywhere();

struct Shape {
  int members = 0;
  std::size_t slot_bytes = std::size_t{16} << 10;
  std::size_t large_slot_bytes = std::size_t{128} << 10;
  std::size_t window_bytes = std::size_t{256} << 10;
  std::size_t channel_bytes = std::size_t{256} << 10;
  static constexpr std::size_t kRing = 64;
  // The blocks of the ring; the entries of a block are free to be used again together.
  static constexpr std::size_t kBlocks = 4;
  static constexpr std::size_t kBlock = kRing / kBlocks;
  static constexpr std::size_t kLargeSlots = 4;
  friend bool operator==(const Shape&, const Shape&) = default;
};

// A small value: copies share one mapping.
class ControlBlock {
 public:
  // Makes the control block of this process. Waiters issue the fence if the system lets them.
  [[nodiscard]] static ControlBlock create(const Shape& shape, Fences fences = Fences::kOnWait);
  // Maps a peer's control block. Throws DataError when its memory is too small.
  [[nodiscard]] static ControlBlock attach(UniqueFd file, const Shape& shape);

  [[nodiscard]] const MemoryFile& memory() const { return *memory_; }
  [[nodiscard]] Operation& operation(std::uint64_t number) const {
    return reinterpret_cast<Operation*>(start_ + layout_.operations)[number % Shape::kRing];
  }
  // Returns where an operation's contribution of so many bytes, up to slot_bytes, is kept.
  [[nodiscard]] std::byte* slot(std::uint64_t number, std::size_t bytes) const {
    if (bytes <= sizeof(Operation::tiny)) return operation(number).tiny;
    if (bytes <= sizeof(Operation::small)) return operation(number).small;
    return start_ + layout_.slots + number % Shape::kRing * shape_.slot_bytes;
  }
  [[nodiscard]] std::byte* large_slot(std::uint64_t index) const {
    return start_ + layout_.large_slots + index % Shape::kLargeSlots * shape_.large_slot_bytes;
  }
  // Return one of two windows: window_in() for what goes in, window_out() for what comes out of a
  // reduction.
  [[nodiscard]] std::byte* window_in(std::uint64_t index) const;
  [[nodiscard]] std::byte* window_out(std::uint64_t index) const;
  [[nodiscard]] Channel& channel(int to) const;
  [[nodiscard]] std::byte* channel_data(int to) const;

  // Returns the kind of fence that the owner can do.
  [[nodiscard]] Fences fences() const;
  // Returns the word that the owner sleeps on (futex); a peer that publishes changes it.
  [[nodiscard]] std::atomic<std::uint32_t>& futex_word() const { return head().futex_word; }
  // Returns the number of the owner's threads that sleep, or are about to.
  [[nodiscard]] std::atomic<std::uint32_t>& waiters() const { return head().waiters; }

  // Returns the last operation that the owner has finished with the whole of its block. Blocks that
  // have the same part of the ring share this word.
  [[nodiscard]] std::atomic<std::uint64_t>& done_until(std::uint64_t block) const {
    return head().done_until[block % Shape::kBlocks];
  }

  // Return the number of the owner's threads that write to other members' memory, and whether the
  // owner's memory is closed to writers. ShmGroup::Writing argues how they keep out of each other's
  // way.
  [[nodiscard]] std::atomic<std::uint32_t>& writers() const { return head().writers; }
  [[nodiscard]] std::atomic<std::uint32_t>& closed() const { return head().closed; }

  // Returns a word that is not 0 once the owner has left the group with nothing of its own under
  // way. Its end is then no failure.
  [[nodiscard]] std::atomic<std::uint32_t>& left() const { return head().left; }

  // Publishes to all members why the owner aborts; the first reason stays.
  void set_abort_reason(std::string_view reason) const;
  [[nodiscard]] bool has_aborted() const { return head().abort_state.load() == kReasonSet; }
  [[nodiscard]] std::string reason() const;

 private:
  static constexpr std::uint32_t kReasonSet = 2;
  struct Head {
    Fences fences;
    alignas(kCacheLine) std::atomic<std::uint32_t> futex_word;
    alignas(kCacheLine) std::atomic<std::uint32_t> waiters;
    alignas(kCacheLine) std::atomic<std::uint64_t> done_until[Shape::kBlocks];
    alignas(kCacheLine) std::atomic<std::uint32_t> writers;
    alignas(kCacheLine) std::atomic<std::uint32_t> closed;
    std::atomic<std::uint32_t> left;
    // 0: no reason; 1: being written; kReasonSet: there.
    alignas(kCacheLine) std::atomic<std::uint32_t> abort_state;
    char reason[1024];
  };
  // Offsets of the parts, in the order in which they lie.
  struct Layout {
    explicit Layout(const Shape& shape);
    std::size_t operations, slots, large_slots, windows, window_stride, channels, channel_data,
        channel_stride, end;
  };
  ControlBlock(MemoryFile memory, const Shape& shape);
  [[nodiscard]] Head& head() const { return *reinterpret_cast<Head*>(start_); }

  std::shared_ptr<MemoryFile> memory_;
  Shape shape_;
  Layout layout_;
  std::byte* start_;  // of the memory
};

}  // namespace troika::shm
