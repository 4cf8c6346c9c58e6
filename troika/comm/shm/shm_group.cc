#include <troika/base/failure_timing.h>
#include <troika/comm/shm/shm_group.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace troika::shm {
namespace {

void wake_waiters(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

// How often to look within `time`, measured once: a pause takes 10 to 140 cycles on x86, by
// processor.
int spins_within(Seconds time) {
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

// About what a store takes from core to core, a few times over.
constexpr Seconds kMoment(500e-9);

std::uint64_t block_of(std::uint64_t operation) {
  return (operation - 1) / Shape::kBlock;
}
// The last of the operations that have the next block of the ring's entries, where those up to
// `free_until` have been free.
std::uint64_t last_before(std::uint64_t free_until) {
  return free_until - Shape::kRing + Shape::kBlock;
}

// All members find the same: they have all control blocks before they use one.
Fences fences_of(const std::vector<ControlBlock>& control_blocks) {
  const bool all = std::ranges::all_of(control_blocks, [](const ControlBlock& control_block) {
    return control_block.fences() == Fences::kOnWait;
  });
  return all ? Fences::kOnWait : Fences::kOnPublish;
}

}  // namespace

ShmGroup::ShmGroup(std::vector<ControlBlock> control_blocks, const Shape& shape, int index,
                   Backoff backoff)
    : control_blocks_(std::move(control_blocks)),
      shape_(shape),
      index_(index),
      backoff_(backoff),
      spins_(spins_within(backoff.spin)),
      brief_spins_(spins_within(std::min(kMoment, backoff.spin))),
      fences_(fences_of(control_blocks_)) {}

void ShmGroup::yield_core() {
  sched_yield();
}

void ShmGroup::take_entry(std::uint64_t operation, const Deadline& deadline) {
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

bool ShmGroup::entry_is_free(std::uint64_t operation) const {
  const std::uint64_t free_until = free_until_.load();
  return operation <= free_until ||
         (operation <= free_until + Shape::kBlock && all_done_until(last_before(free_until)));
}

void ShmGroup::finish(std::uint64_t operation) {
  const std::uint64_t block = block_of(operation);
  if (finished_[block % Shape::kBlocks].fetch_add(1) + 1 < Shape::kBlock) return;
  // Before it is published: peers may then use the entries again, and operations of the next block
  // count here.
  finished_[block % Shape::kBlocks].store(0);
  publish(own().done_until(block), (block + 1) * Shape::kBlock);
}

bool ShmGroup::done_until(int member, std::uint64_t operation) const {
  return control_block(member).done_until(block_of(operation)).load() >= operation;
}

bool ShmGroup::all_done_until(std::uint64_t operation) const {
  for (int member = 0; member < size(); ++member) {
    if (!done_until(member, operation)) return false;
  }
  return true;
}

std::uint64_t ShmGroup::take_large_slot(std::uint64_t operation, const Deadline& deadline) {
  const std::uint64_t index = next_large_slot_++ % Shape::kLargeSlots;
  if (in_large_slots_[index] > 0) await_all(in_large_slots_[index], Progress::kDone, deadline);
  in_large_slots_[index] = operation;
  return index;
}

bool ShmGroup::large_slot_is_free() const {
  const std::uint64_t last = in_large_slots_[next_large_slot_ % Shape::kLargeSlots];
  return last == 0 || all_at(last, Progress::kDone);
}

void ShmGroup::take_windows(std::uint64_t operation, const Deadline& deadline) {
  if (last_stream_ > 0) await_all(last_stream_, Progress::kDone, deadline);
  last_stream_ = operation;
}

void ShmGroup::await_others(std::uint64_t operation, std::uint64_t phase, const Deadline& deadline,
                            std::size_t in_slot) {
  wait([&] { return all_at(operation, phase, in_slot); },
       [&] { return missing_at(operation, phase); }, deadline);
}

std::vector<int> ShmGroup::missing_at(std::uint64_t operation, std::uint64_t phase) const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (progress(member, operation) < Progress::at(operation, phase)) members.push_back(member);
  }
  return members;
}

void ShmGroup::wake(int member) const {
  const ControlBlock& peer = control_block(member);
  peer.futex_word().fetch_add(1);
  wake_waiters(peer.futex_word());
}

void ShmGroup::sleep(std::uint32_t seen, const Deadline& deadline) const {
  const double seconds = std::min(deadline.left(), backoff_.sleep).count();
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&own().futex_word()), FUTEX_WAIT, seen,
          &timeout, nullptr, 0);
}

void ShmGroup::close() {
  // The flag first, then the writers: the other way round a peer could begin to write in between.
  own().closed().store(1);
  const Deadline enough = [&] {
    const std::lock_guard lock(mutex_);
    if (!until_closed_) until_closed_ = Deadline::in(failure_timing::kPeerWriters);
    return *until_closed_;
  }();
  for (int member = 0; member < size(); ++member) {
    if (member == index_) continue;
    while (control_block(member).writers().load() > 0 && !enough.passed()) yield_core();
  }
}

std::optional<int> ShmGroup::closed() const {
  std::atomic_thread_fence(std::memory_order_acquire);  // after what has been read
  for (int member = 0; member < size(); ++member) {
    if (control_block(member).closed().load() != 0) return member;
  }
  return std::nullopt;
}

void ShmGroup::abort(const std::string& reason) {
  // The reason is published before anyone is woken: a peer that wakes reads it at once.
  own().set_abort_reason(reason);
  fail(reason);
  notify_all();
}

void ShmGroup::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    // The first reason is the cause; later ones follow from it.
    if (reason_.empty()) reason_ = reason;
  }
  // After the reason, which throw_if_broken() reads once this is set. The futex word changes last,
  // so that a thread between its check and its sleep does not sleep.
  broken_.store(true);
  own().futex_word().fetch_add(1);
  wake_waiters(own().futex_word());
}

void ShmGroup::on_peer_exit(int member, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    exited_.emplace(member, reason);
  }
  // After the entry above, and before the futex word changes: a waiter looks at both when it wakes.
  some_exited_.store(true);
  own().futex_word().fetch_add(1);
  wake_waiters(own().futex_word());
}

bool ShmGroup::any_member_ended() const {
  return broken_.load() || some_exited_.load() ||
         std::ranges::any_of(control_blocks_, [](const ControlBlock& control_block) {
           return control_block.has_aborted();
         });
}

void ShmGroup::throw_if_exited(const std::vector<int>& missing) {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    const auto gone =
        std::ranges::find_if(missing, [&](int member) { return exited_.contains(member); });
    if (gone == missing.end()) return;
    reason = exited_.at(*gone);
  }
  // The others may wait for this member in turn: they get the reason at once, not at their
  // deadlines.
  abort(reason);
  throw Broken(reason);
}

bool ShmGroup::fails_waiters_for(const std::vector<int>& missing) const {
  if (broken_.load()) return true;
  if (std::ranges::any_of(control_blocks_, [](const ControlBlock& control_block) {
        return control_block.has_aborted();
      })) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(missing, [&](int member) { return exited_.contains(member); });
}

void ShmGroup::throw_if_broken() const {
  if (broken_.load()) {
    const std::lock_guard lock(mutex_);
    throw Broken(reason_);
  }
  for (int member = 0; member < size(); ++member) {
    if (!control_block(member).has_aborted()) continue;
    throw Broken(control_block(member).reason(), member == index_ ? -1 : member);
  }
}

}  // namespace troika::shm
