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

// So many entries are taken together: the peers' are in the caches of other cores, and asked for
// together they come together.
constexpr std::uint64_t kTogether = Shape::kRing / 4;

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
      fences_(fences_of(boards_)) {}

void Party::let_others_run() {
  sched_yield();
}

void Party::take_entry(std::uint64_t operation, const Deadline& deadline) {
  std::uint64_t free_until = free_until_.load();
  while (operation > free_until) {
    for (std::uint64_t before = 1; before <= kTogether; ++before) {
      await_all(free_until - Shape::kRing + before, Progress::kDone, deadline);
    }
    // Another thread may have found the same, or more.
    if (free_until_.compare_exchange_strong(free_until, free_until + kTogether)) {
      free_until += kTogether;
    }
  }
}

bool Party::entry_is_free(std::uint64_t operation) const {
  const std::uint64_t free_until = free_until_.load();
  if (operation <= free_until) return true;
  for (std::uint64_t before = 1; before <= kTogether; ++before) {
    if (!all_at(free_until - Shape::kRing + before, Progress::kDone)) return false;
  }
  return operation <= free_until + kTogether;
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
  std::atomic<std::uint64_t>& progress = own().operation(operation).progress;
  if (fences_ == Fences::kAtSleep) {
    // The peers have the line in their caches: a fence would wait until they have given it up.
    progress.store(Progress::at(operation, phase), std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order
  } else {
    progress.store(Progress::at(operation, phase));
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
