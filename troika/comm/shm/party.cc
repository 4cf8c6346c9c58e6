#include <troika/comm/shm/party.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace troika::shm {
namespace {

void wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

// How often to look within `time`, measured once: a pause takes 10 to 140 cycles on x86, by
// processor.
int looks_within(Seconds time) {
  if (time.count() <= 0) return 1;
  static const double per_second = [] {
    constexpr int kTrial = 2000;
    std::atomic<std::uint32_t> word = 0;
    const auto start = Clock::now();
    for (int i = 0; i < kTrial; ++i) {
      (void)word.load();
      pause_core();
    }
    return kTrial / Seconds(Clock::now() - start).count();
  }();
  return static_cast<int>(std::min(per_second * time.count(), 1e7)) + 1;
}

// About what a piece of news takes from core to core, a few times over.
constexpr Seconds kMoment(500e-9);

std::uint64_t block_of(std::uint64_t operation) {
  return (operation - 1) / Shape::kBlock;
}
// The last of the operations that have the next block of the ring's entries, where those up to
// `free_until` have been free.
std::uint64_t last_before(std::uint64_t free_until) {
  return free_until - Shape::kRing + Shape::kBlock;
}

// All members find the same: they have all boards before they use one.
Fences fences_of(const std::vector<Board>& boards) {
  const bool all = std::ranges::all_of(
      boards, [](const Board& board) { return board.fences() == Fences::kAtSleep; });
  return all ? Fences::kAtSleep : Fences::kAtNews;
}

}  // namespace

Party::Party(std::vector<Board> boards, const Shape& shape, int index, Patience patience)
    : boards_(std::move(boards)),
      shape_(shape),
      index_(index),
      patience_(patience),
      spins_(looks_within(patience.spin)),
      looks_for_a_moment_(looks_within(std::min(kMoment, patience.spin))),
      fences_(fences_of(boards_)) {}

void Party::let_others_run() {
  sched_yield();
}

void Party::take_entry(std::uint64_t operation, const Deadline& deadline) {
  std::uint64_t free_until = free_until_.load();
  while (operation > free_until) {
    const std::uint64_t before = last_before(free_until);
    const auto missing = [&] {
      std::vector<int> members;
      for (int member = 0; member < size(); ++member) {
        if (!done_until(member, before)) members.push_back(member);
      }
      return members;
    };
    wait([&] { return all_done_until(before); }, missing, deadline);
    // Another thread may have found the same, or more.
    if (free_until_.compare_exchange_strong(free_until, free_until + Shape::kBlock)) {
      free_until += Shape::kBlock;
    }
  }
}

bool Party::entry_is_free(std::uint64_t operation) const {
  const std::uint64_t free_until = free_until_.load();
  return operation <= free_until ||
         (operation <= free_until + Shape::kBlock && all_done_until(last_before(free_until)));
}

void Party::finish(std::uint64_t operation) {
  const std::uint64_t block = block_of(operation);
  if (finished_[block % Shape::kBlocks].fetch_add(1) + 1 < Shape::kBlock) return;
  finished_[block % Shape::kBlocks].store(0);
  announce(own().done_until(block), (block + 1) * Shape::kBlock);
}

bool Party::done_until(int member, std::uint64_t operation) const {
  return board(member).done_until(block_of(operation)).load() >= operation;
}

bool Party::all_done_until(std::uint64_t operation) const {
  for (int member = 0; member < size(); ++member) {
    if (!done_until(member, operation)) return false;
  }
  return true;
}

std::uint64_t Party::take_large_slot(std::uint64_t operation, const Deadline& deadline) {
  const std::uint64_t index = next_large_slot_++ % Shape::kLargeSlots;
  if (in_large_slots_[index] > 0) await_all(in_large_slots_[index], Progress::kDone, deadline);
  in_large_slots_[index] = operation;
  return index;
}

bool Party::large_slot_is_free() const {
  const std::uint64_t last = in_large_slots_[next_large_slot_ % Shape::kLargeSlots];
  return last == 0 || all_at(last, Progress::kDone);
}

void Party::take_windows(std::uint64_t operation, const Deadline& deadline) {
  if (last_stream_ > 0) await_all(last_stream_, Progress::kDone, deadline);
  last_stream_ = operation;
}

void Party::advance(std::uint64_t operation, std::uint64_t phase) {
  announce(own().operation(operation).progress, Progress::at(operation, phase));
}

void Party::announce(std::atomic<std::uint64_t>& word, std::uint64_t news) const {
  if (fences_ == Fences::kAtSleep) {
    // The peers have the line in their caches: a fence would wait until they have given it up.
    word.store(news, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order
  } else {
    word.store(news);
  }
  tell_all();
}

void Party::await_all(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline) {
  const auto missing = [&] {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
      if (board(member).operation(operation).progress.load() < Progress::at(operation, phase)) {
        members.push_back(member);
      }
    }
    return members;
  };
  wait([&] { return all_at(operation, phase); }, missing, deadline);
}

void Party::tell(int member) const {
  const Board& peer = board(member);
  if (peer.sleepers().load() == 0) return;
  peer.bell().fetch_add(1);
  wake(peer.bell());
}

void Party::tell_all() const {
  for (int member = 0; member < size(); ++member) {
    if (member != index_) tell(member);
  }
}

void Party::sleep(std::uint32_t bell, const Deadline& deadline) const {
  const double seconds = std::min(deadline.left(), patience_.sleep).count();
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&own().bell()), FUTEX_WAIT, bell, &timeout,
          nullptr, 0);
}

void Party::give_up(const std::string& reason) {
  own().give_up(reason);
  lose(reason);
  tell_all();
}

void Party::lose(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
  }
  broken_.store(true);
  own().bell().fetch_add(1);
  wake(own().bell());
}

void Party::throw_if_broken() const {
  if (broken_.load()) {
    const std::lock_guard lock(mutex_);
    throw Broken(reason_);
  }
  for (int member = 0; member < size(); ++member) {
    if (!board(member).has_given_up()) continue;
    throw Broken(board(member).reason(), member == index_ ? -1 : member);
  }
}

}  // namespace troika::shm
