// The members of a shared-memory group as one of them sees them: its own control block, the
// others', and how to wait for them.
//
// Memory ordering. A member publishes its bytes by storing `progress` (release), and a peer that
// has loaded that value (acquire) sees the bytes. A ring entry and its slot are used again only
// after every member has finished the operation that had them, with all others of its block: the
// reader's last reads come before its store of `done_until`, and the owner loads that before it
// writes.
//
// Sleeping. A waiter counts itself among the waiters, checks once more, then sleeps unless the
// futex word has changed since before that check. A publisher stores its progress, then checks for
// waiters, and changes the futex word if there are any. A full fence between the two accesses of
// each side ensures that either the waiter sees the progress, or the publisher sees the waiter: no
// wake-up is lost. Publishing is frequent and sleeping is rare, so where all members have
// membarrier(2) the fence of the publisher is left to the waiter: membarrier(2) has every thread of
// the other processes pass one between two of its instructions. If that falls after the check for
// waiters, then the progress, stored before it, is visible to the waiter's last check; if before,
// then the check for waiters comes after the count.
#pragma once

#include <troika/base/pause.h>
#include <troika/base/prefetch_line.h>
#include <troika/base/time.h>
#include <troika/comm/shm/control_block.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troika::shm {

// Thrown when members are not there by the deadline.
class TimedOut : public std::runtime_error {
 public:
  explicit TimedOut(std::vector<int> missing)
      : std::runtime_error("late"), missing_(std::move(missing)) {}
  [[nodiscard]] const std::vector<int>& missing() const { return missing_; }

 private:
  std::vector<int> missing_;
};

// The group was broken: by this member, or by a peer that aborted or exited.
class Broken : public std::runtime_error {
 public:
  explicit Broken(const std::string& reason, int by = -1) : std::runtime_error(reason), by_(by) {}
  // Returns the member that aborted; -1 where it was this one, or where the reason says it.
  [[nodiscard]] int by() const { return by_; }

 private:
  int by_;
};

class ShmGroup {
 public:
  // The time that a waiter spins, and then yields, before it sleeps. Where the host has more ranks
  // than cores it only yields: the peers need the core to make progress.
  struct Backoff {
    Seconds spin{0};
    Seconds yield{0};
    // A waiter wakes up at least this often: a clock that jumps must not hold a thread for ever.
    Seconds sleep{1};
  };

  // `control_blocks` are by member, each its owner's; `index` is this process.
  ShmGroup(std::vector<ControlBlock> control_blocks, const Shape& shape, int index,
           Backoff backoff);

  [[nodiscard]] int size() const { return static_cast<int>(control_blocks_.size()); }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const ControlBlock& control_block(int member) const {
    return control_blocks_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] const ControlBlock& own() const { return control_block(index_); }

  // Publishes that this member has come to `phase` of the operation.
  void advance(std::uint64_t operation, std::uint64_t phase) {
    own_progress_[operation % Shape::kRing].store(Progress::at(operation, phase),
                                                  std::memory_order_release);
    publish(own().operation(operation).progress, Progress::at(operation, phase));
  }
  // Publishes that this member no longer needs the operation's ring entries and slots, its own or
  // the others'. Operations may be finished in any order. It publishes block by block: to publish
  // each one would take the line from the peers' caches as often.
  void finish(std::uint64_t operation);
  // Waits until every member has come to `phase` of the operation. `in_slot` bytes are expected in
  // the slots then. Throws TimedOut, Broken.
  void await_all(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline,
                 std::size_t in_slot = 0) {
    if (!all_at(operation, phase, in_slot)) await_others(operation, phase, deadline, in_slot);
  }
  [[nodiscard]] bool all_at(std::uint64_t operation, std::uint64_t phase,
                            std::size_t in_slot = 0) const {
    const std::uint64_t wanted = Progress::at(operation, phase);
    for (int member = 0; member < size(); ++member) {
      if (member != index_) prefetch_slot(member, operation, in_slot);
      if (progress(member, operation) < wanted) return false;
    }
    return true;
  }
  // Takes the ring's entry, and its slot, for this operation: waits until every member has finished
  // the operation that had them. Any thread.
  void take_entry(std::uint64_t operation, const Deadline& deadline);
  // Returns whether take_entry() would not wait.
  [[nodiscard]] bool entry_is_free(std::uint64_t operation) const;
  // Takes the windows for this operation: waits until every member is done with the operation that
  // had them. Called in the order of operations, by one thread at a time.
  void take_windows(std::uint64_t operation, const Deadline& deadline);
  // Takes a large slot in the same way, and returns it.
  std::uint64_t take_large_slot(std::uint64_t operation, const Deadline& deadline);
  // Returns whether take_large_slot() would not wait.
  [[nodiscard]] bool large_slot_is_free() const;

  // Returns whether `ready` holds, or comes to hold within the moment that members take when they
  // come at the same time. Call it once this member has published. To check before takes the line
  // of the cache from a peer that is just about to write it.
  template <class Ready>
  [[nodiscard]] bool ready_soon(const Ready& ready) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < brief_spins_; ++i) {
      if (ready()) return true;
      pause_core();
    }
    return false;
  }
  // Waits until `ready`. Throws TimedOut naming `missing()`, Broken.
  template <class Ready, class Missing>
  void wait(const Ready& ready, const Missing& missing, const Deadline& deadline) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return;
      pause_core();
    }
    if (backoff_.yield.count() > 0) {
      const Deadline enough = Deadline::in(backoff_.yield);
      do {
        if (ready()) return;
        yield_core();
      } while (!enough.passed());
    }
    const Waiter waiter(own(), fences_);
    while (true) {
      const std::uint32_t seen = own().futex_word().load();
      if (ready()) return;
      if (any_member_ended()) {
        if (ready()) return;  // by what it did before
        throw_if_exited(missing());
        throw_if_broken();
      }
      if (deadline.passed()) throw TimedOut(missing());
      sleep(seen, deadline);
    }
  }
  // Returns whether wait() would throw by now, rather than go on.
  template <class Missing>
  [[nodiscard]] bool is_over(const Missing& missing, const Deadline& deadline) {
    return deadline.passed() || (any_member_ended() && fails_waiters_for(missing()));
  }
  // Returns the members that have not come to `phase` of the operation.
  [[nodiscard]] std::vector<int> missing_at(std::uint64_t operation, std::uint64_t phase) const;
  // Wake `member`, or all members, if they sleep. Call after every store that publishes, which has
  // to be sequentially consistent.
  void notify(int member) const {
    if (control_block(member).waiters().load() > 0) wake(member);
  }
  void notify_all() const {
    for (int member = 0; member < size(); ++member) {
      if (member != index_) notify(member);
    }
  }

  // Lets this member write to another's memory while it lives, if that one has not closed it. The
  // writer counts itself, then looks. The member that closes sets its flag first, then waits for
  // the writers that count. All four accesses are sequentially consistent, so that one of the two
  // sees the other.
  class Writing {
   public:
    Writing(const ShmGroup& group, int member) : own_(group.own()) {
      own_.writers().fetch_add(1);
      allowed_ = group.control_block(member).closed().load() == 0;
    }
    ~Writing() { own_.writers().fetch_sub(1); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    [[nodiscard]] bool allowed() const { return allowed_; }

   private:
    const ControlBlock& own_;
    bool allowed_;
  };
  // Closes this member's memory after an operation has failed. No peer writes to it once this
  // returns, and its tensors are the caller's again. Waits for a peer that has stopped while it
  // writes until kPeerWriters after the first failure. Any thread.
  void close();
  // Returns a member that has closed its memory, if any has. What was read there may then be
  // anything.
  [[nodiscard]] std::optional<int> closed() const;

  // Breaks the group, here and, with `reason`, for the others. Any thread.
  void abort(const std::string& reason);
  // Breaks the group here, after a peer has exited. Any thread.
  void fail(const std::string& reason);
  // Publishes that this member leaves, with nothing under way.
  void leave() const { own().left().store(1); }
  // Notes that a peer that had left has exited. Breaks the group, with `reason`, once a member
  // waits for it. Any thread.
  void on_peer_exit(int member, const std::string& reason);
  void throw_if_broken() const;
  [[nodiscard]] bool broken() const { return broken_.load(); }

 private:
  // Counts a thread among the waiters.
  class Waiter {
   public:
    Waiter(const ControlBlock& control_block, Fences fences) : control_block_(control_block) {
      control_block_.waiters().fetch_add(1);
      if (fences == Fences::kOnWait) fence_everywhere();
    }
    ~Waiter() { control_block_.waiters().fetch_sub(1); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    const ControlBlock& control_block_;
  };
  static void yield_core();
  // Returns the progress of the last operation that has had the ring's entry. This member does not
  // read its own back from shared memory. A peer that has just read it has the line in its caches,
  // and may have it alone.
  [[nodiscard]] std::uint64_t progress(int member, std::uint64_t operation) const {
    return member == index_ ? own_progress_[operation % Shape::kRing].load()
                            : control_block(member).operation(operation).progress.load();
  }
  void publish(std::atomic<std::uint64_t>& word, std::uint64_t value) const {
    if (fences_ == Fences::kOnWait) {
      // The peers have the line in their caches: a fence would wait until they have given it up.
      word.store(value, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order
    } else {
      word.store(value);
    }
    notify_all();
  }
  void wake(int member) const;
  void await_others(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline,
                    std::size_t in_slot);
  // Prefetches the slot that progress announces, so that it sets out together with progress, and
  // not only when progress is here. Of long contributions it takes the first lines: the others
  // follow by themselves.
  void prefetch_slot(int member, std::uint64_t operation, std::size_t bytes) const {
    constexpr std::size_t kMost = 16 * kCacheLine;
    if (bytes <= sizeof(Operation::tiny)) return;
    const std::byte* slot = control_block(member).slot(operation, bytes);
    for (std::size_t at = 0; at < std::min(bytes, kMost); at += kCacheLine)
      prefetch_line(slot + at);
  }
  // Returns whether the group is broken, or a member gone.
  [[nodiscard]] bool any_member_ended() const;
  void throw_if_exited(const std::vector<int>& missing);
  [[nodiscard]] bool fails_waiters_for(const std::vector<int>& missing) const;
  // Returns whether the member has finished the operation, the last of a block, and the block with
  // it.
  [[nodiscard]] bool done_until(int member, std::uint64_t operation) const;
  [[nodiscard]] bool all_done_until(std::uint64_t operation) const;
  void sleep(std::uint32_t seen, const Deadline& deadline) const;

  std::vector<ControlBlock> control_blocks_;
  Shape shape_;
  int index_;
  Backoff backoff_;
  int spins_;
  int brief_spins_;
  Fences fences_;
  std::array<std::atomic<std::uint64_t>, Shape::kRing> own_progress_{};
  // Operations whose entries are free to take; it only grows.
  std::atomic<std::uint64_t> free_until_ = Shape::kRing;
  // The number of operations of each block that this member has finished.
  std::array<std::atomic<std::uint64_t>, Shape::kBlocks> finished_{};
  std::uint64_t last_stream_ = 0;
  // The last operations that had the large slots; 0: none.
  std::array<std::uint64_t, Shape::kLargeSlots> in_large_slots_{};
  std::uint64_t next_large_slot_ = 0;
  std::atomic<bool> broken_ = false, some_exited_ = false;
  mutable std::mutex mutex_;
  // The members below are guarded by the mutex.
  std::string reason_;
  std::map<int, std::string> exited_;  // why the member is missed
  std::optional<Deadline> until_closed_;
};

}  // namespace troika::shm
