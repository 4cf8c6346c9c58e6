// The members of a shared-memory group as one of them sees them: its own board, the others', and
// how to wait for them.
//
// Memory ordering. A member tells of its bytes by storing `progress` (release), and whoever has
// loaded that value (acquire) sees the bytes. A ring entry and its slot are used again only after
// every member has finished the operation that had them, with all others of its block: the reader's
// last reads come before its store of `done_until`, and the owner loads that before it writes.
//
// Sleeping. Who waits first counts itself among the sleepers, then looks once more, then sleeps
// unless the bell has rung since before that look. Who has news first stores it, then looks for
// sleepers, and rings the bell if there are any. A full fence between the two accesses of each side
// sees to it that either the last look finds the news, or the look for sleepers the sleeper: no
// wake-up is lost. News is frequent and sleeping is rare, so where all members have it the fence on
// the side of the news is left to the sleeper: membarrier(2) has every thread of the other
// processes pass one between two of its instructions. If that falls after the look for sleepers,
// then the news, stored before it, is visible to the sleeper's last look; if before, then the look
// for sleepers comes after the count.
#pragma once

#include <troika/base/fetch_line.h>
#include <troika/base/pause.h>
#include <troika/base/time.h>
#include <troika/comm/shm/board.h>

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

// Members that are not there by the deadline.
class Late : public std::runtime_error {
 public:
  explicit Late(std::vector<int> missing)
      : std::runtime_error("late"), missing_(std::move(missing)) {}
  [[nodiscard]] const std::vector<int>& missing() const { return missing_; }

 private:
  std::vector<int> missing_;
};

// The group was broken: by this member, or by a peer that gave up or died.
class Broken : public std::runtime_error {
 public:
  explicit Broken(const std::string& reason, int by = -1) : std::runtime_error(reason), by_(by) {}
  // The member that gave up; -1 where it was this one, or where the reason says it.
  [[nodiscard]] int by() const { return by_; }

 private:
  int by_;
};

class Party {
 public:
  // How long to look again and again before sleeping: with a core of one's own, and then letting
  // other threads of the machine go first between two looks. Where there are more ranks than cores
  // only the latter makes sense: the peers need the core to come.
  struct Patience {
    Seconds spin{0};
    Seconds yield{0};
    // A sleeper looks up so often all the same: a clock that jumps must not hold a thread for ever.
    Seconds sleep{1};
  };

  // `boards` by member, each its owner's; `index` is this process.
  Party(std::vector<Board> boards, const Shape& shape, int index, Patience patience);

  [[nodiscard]] int size() const { return static_cast<int>(boards_.size()); }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const Board& board(int member) const {
    return boards_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] const Board& own() const { return board(index_); }

  // This member has come to `phase` of the operation: tells the others.
  void advance(std::uint64_t operation, std::uint64_t phase) {
    own_progress_[operation % Shape::kRing].store(Progress::at(operation, phase),
                                                  std::memory_order_release);
    announce(own().operation(operation).progress, Progress::at(operation, phase));
  }
  // This member needs the operation's ring entries and slots no longer, its own nor the others'.
  // Operations may be finished in any order. The others are told block by block: news for each
  // would take the line from the peers' caches as often.
  void finish(std::uint64_t operation);
  // Waits until every member has come to `phase` of the operation. `in_slot` bytes are expected in
  // the slots then. Throws Late, Broken.
  void await_all(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline,
                 std::size_t in_slot = 0) {
    if (!all_at(operation, phase, in_slot)) await_others(operation, phase, deadline, in_slot);
  }
  [[nodiscard]] bool all_at(std::uint64_t operation, std::uint64_t phase,
                            std::size_t in_slot = 0) const {
    const std::uint64_t wanted = Progress::at(operation, phase);
    for (int member = 0; member < size(); ++member) {
      if (member != index_) fetch_slot(member, operation, in_slot);
      if (progress(member, operation) < wanted) return false;
    }
    return true;
  }
  // The ring's entry, and its slot, are this operation's from now on: waits until everybody has
  // finished the operation that had them. Called by any thread.
  void take_entry(std::uint64_t operation, const Deadline& deadline);
  // Whether take_entry would not wait.
  [[nodiscard]] bool entry_is_free(std::uint64_t operation) const;
  // The windows are this operation's from now on: waits until everybody is done with the operation
  // that had them. Called in the order of operations, by one thread at a time.
  void take_windows(std::uint64_t operation, const Deadline& deadline);
  // The same for the large slot that it returns.
  std::uint64_t take_large_slot(std::uint64_t operation, const Deadline& deadline);
  // Whether take_large_slot would not wait.
  [[nodiscard]] bool large_slot_is_free() const;

  // Whether `ready` holds, or comes to hold within the moment that members take who come at the
  // same time. Looks once this member's own news is out: to look before takes the line of the cache
  // from a peer that is just about to write it.
  template <class Ready>
  [[nodiscard]] bool soon(const Ready& ready) const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < looks_for_a_moment_; ++i) {
      if (ready()) return true;
      pause_core();
    }
    return false;
  }
  // Waits until `ready`. Throws Late naming `missing()`, Broken.
  template <class Ready, class Missing>
  void wait(const Ready& ready, const Missing& missing, const Deadline& deadline) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return;
      pause_core();
    }
    if (patience_.yield.count() > 0) {
      const Deadline enough = Deadline::in(patience_.yield);
      do {
        if (ready()) return;
        let_others_run();
      } while (!enough.passed());
    }
    const Sleeper sleeper(own(), fences_);
    while (true) {
      const std::uint32_t bell = own().bell().load();
      if (ready()) return;
      if (somebody_ended()) {
        if (ready()) return;  // by what it did before
        throw_if_gone(missing());
        throw_if_broken();
      }
      if (deadline.passed()) throw Late(missing());
      sleep(bell, deadline);
    }
  }
  // Whether wait() would throw by now, rather than go on.
  template <class Missing>
  [[nodiscard]] bool is_over(const Missing& missing, const Deadline& deadline) {
    return deadline.passed() || (somebody_ended() && ends_those_who_wait_for(missing()));
  }
  // Those that have not come to `phase` of the operation.
  [[nodiscard]] std::vector<int> missing_at(std::uint64_t operation, std::uint64_t phase) const;
  // Wakes `member`, or everybody, where they sleep: after every piece of news, whose store has to
  // be sequentially consistent.
  void tell(int member) const {
    if (board(member).sleepers().load() > 0) wake(member);
  }
  void tell_all() const {
    for (int member = 0; member < size(); ++member) {
      if (member != index_) tell(member);
    }
  }

  // While it lives this member writes to another's memory, if that one has not closed it. The
  // writer counts itself, then looks; whoever closes first says so, then waits for those that
  // count. All four are sequentially consistent, so that one of the two sees the other.
  class Writing {
   public:
    Writing(const Party& party, int member) : own_(party.own()) {
      own_.writers().fetch_add(1);
      allowed_ = party.board(member).closed().load() == 0;
    }
    ~Writing() { own_.writers().fetch_sub(1); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    [[nodiscard]] bool allowed() const { return allowed_; }

   private:
    const Board& own_;
    bool allowed_;
  };
  // Nobody writes to this member's memory once it returns: an operation has failed, and its tensors
  // are the caller's again. One that has stopped while it writes is waited for until kForWriters
  // after the first failure. Any thread.
  static constexpr Seconds kForWriters{0.5};
  void close();
  // A member that has closed its memory, after which what was read there may be anything.
  [[nodiscard]] std::optional<int> closed() const;

  // Breaks the group, here and, with `reason`, for the others. Any thread.
  void give_up(const std::string& reason);
  // A peer is dead: breaks the group here. Any thread.
  void lose(const std::string& reason);
  // This member leaves, with nothing under way.
  void leave() const { own().left().store(1); }
  // A peer that had left is no more: breaks the group, with `reason`, once a member waits for it.
  // Any thread.
  void miss(int member, const std::string& reason);
  void throw_if_broken() const;
  [[nodiscard]] bool broken() const { return broken_.load(); }

 private:
  // Counts a thread among the sleepers.
  class Sleeper {
   public:
    Sleeper(const Board& board, Fences fences) : board_(board) {
      board_.sleepers().fetch_add(1);
      if (fences == Fences::kAtSleep) fence_everywhere();
    }
    ~Sleeper() { board_.sleepers().fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    const Board& board_;
  };
  static void let_others_run();
  // Of the last operation that has had the ring's entry. What this member has told it does not read
  // back: a peer that has just read it has the line in its caches, and may have it alone.
  [[nodiscard]] std::uint64_t progress(int member, std::uint64_t operation) const {
    return member == index_ ? own_progress_[operation % Shape::kRing].load()
                            : board(member).operation(operation).progress.load();
  }
  void announce(std::atomic<std::uint64_t>& word, std::uint64_t news) const {
    if (fences_ == Fences::kAtSleep) {
      // The peers have the line in their caches: a fence would wait until they have given it up.
      word.store(news, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order
    } else {
      word.store(news);
    }
    tell_all();
  }
  void wake(int member) const;
  void await_others(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline,
                    std::size_t in_slot);
  // What progress announces sets out together with it, where it would else set out when progress is
  // here. Of long contributions the first lines: the others follow by themselves.
  void fetch_slot(int member, std::uint64_t operation, std::size_t bytes) const {
    constexpr std::size_t kMost = 16 * kLine;
    if (bytes <= sizeof(Operation::tiny)) return;
    const std::byte* slot = board(member).slot(operation, bytes);
    for (std::size_t at = 0; at < std::min(bytes, kMost); at += kLine) fetch_line(slot + at);
  }
  // Whether the group is broken, or a member gone.
  [[nodiscard]] bool somebody_ended() const;
  void throw_if_gone(const std::vector<int>& missing);
  [[nodiscard]] bool ends_those_who_wait_for(const std::vector<int>& missing) const;
  // Whether the member has finished the operation, the last of a block, and the block with it.
  [[nodiscard]] bool done_until(int member, std::uint64_t operation) const;
  [[nodiscard]] bool all_done_until(std::uint64_t operation) const;
  void sleep(std::uint32_t bell, const Deadline& deadline) const;

  std::vector<Board> boards_;
  Shape shape_;
  int index_;
  Patience patience_;
  int spins_;
  int looks_for_a_moment_;
  Fences fences_;
  std::array<std::atomic<std::uint64_t>, Shape::kRing> own_progress_{};
  // Operations whose entries are free to take; it only grows.
  std::atomic<std::uint64_t> free_until_ = Shape::kRing;
  // How many operations of each block this member has finished.
  std::array<std::atomic<std::uint64_t>, Shape::kBlocks> finished_{};
  std::uint64_t last_stream_ = 0;
  // The last operations that had the large slots; 0: none.
  std::array<std::uint64_t, Shape::kLargeSlots> in_large_slots_{};
  std::uint64_t next_large_slot_ = 0;
  std::atomic<bool> broken_ = false, some_gone_ = false;
  mutable std::mutex mutex_;
  // What follows is guarded by the mutex.
  std::string reason_;
  std::map<int, std::string> gone_;  // why the member is missed
  std::optional<Deadline> until_closed_;
};

}  // namespace troika::shm
