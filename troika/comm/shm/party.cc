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

// How often to look within `time`, measured once: a pause takes 10 to 140 cycles, by processor.
int looks_within(Seconds time) {
  if (time.count() <= 0) return 1;
  static const double per_second = [] {
    constexpr int kTrial = 2000;
    std::atomic<std::uint32_t> word = 0;
    const auto start = Clock::now();
    for (int i = 0; i < kTrial; ++i) {
      (void)word.load();
      __builtin_ia32_pause();
    }
    return kTrial / Seconds(Clock::now() - start).count();
  }();
  return static_cast<int>(std::min(per_second * time.count(), 1e7)) + 1;
}

}  // namespace

Party::Party(std::vector<Board> boards, const Shape& shape, int index, Patience patience)
    : boards_(std::move(boards)),
      shape_(shape),
      index_(index),
      patience_(patience),
      spins_(looks_within(patience.spin)) {}

void Party::pause() {
  __builtin_ia32_pause();
}

void Party::let_others_run() {
  sched_yield();
}

// A quarter of the ring at a time: the peers' entries are in the caches of other cores, and asked
// for together they come together.
void Party::take_entry(std::uint64_t operation, const Deadline& deadline) {
  constexpr std::uint64_t kTogether = Shape::kRing / 4;
  while (operation > free_until_) {
    for (std::uint64_t before = 1; before <= kTogether; ++before) {
      await_all(free_until_ - Shape::kRing + before, Progress::kDone, deadline);
    }
    free_until_ += kTogether;
  }
}

void Party::take_windows(std::uint64_t operation, const Deadline& deadline) {
  if (last_stream_ > 0) await_all(last_stream_, Progress::kDone, deadline);
  last_stream_ = operation;
}

void Party::advance(std::uint64_t operation, std::uint64_t phase) {
  own().operation(operation).progress.store(Progress::at(operation, phase));
  tell_all();
}

bool Party::all_at(std::uint64_t operation, std::uint64_t phase) const {
  const std::uint64_t wanted = Progress::at(operation, phase);
  for (const Board& board : boards_) {
    if (board.operation(operation).progress.load() < wanted) return false;
  }
  return true;
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
  // Bounded, so that a clock that jumps cannot hold a thread for ever.
  constexpr double kTurn = 1;
  const double seconds = std::min(deadline.left().count(), kTurn);
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
    if (board(member).has_given_up()) throw Broken(board(member).reason(), member);
  }
}

}  // namespace troika::shm
