#include <troika/base/failure_timing.h>
#include <troika/base/prefetch_line.h>
#include <troika/base/short_copy.h>
#include <troika/comm/shm/collective.h>

#include <algorithm>
#include <cstring>

namespace troika::shm {
namespace {

// Up to so many bytes from all others together, all members reduce all: a second step, in which the
// others must come again, takes longer than reading them.
constexpr std::size_t kAtOnce = std::size_t{128} << 10;

}  // namespace

bool Collective::reduces_at_once(std::size_t bytes, int members, const Shape& shape) {
  return bytes <= shape.slot_bytes || (bytes <= shape.large_slot_bytes &&
                                       bytes * static_cast<std::size_t>(members - 1) <= kAtOnce);
}

Placement Collective::placement_of(const Contribution& own, const Shape& shape) {
  if (own.bytes == 0) return Placement::kNone;
  if (own.bytes <= shape.slot_bytes) return Placement::kSlot;
  if (own.location) return Placement::kMemory;
  return own.at_once <= shape.large_slot_bytes ? Placement::kLargeSlot : Placement::kStream;
}

void Collective::announce(std::string_view name, const Deadline& deadline) {
  group_.take_entry(number_, deadline);
  Operation& entry = group_.own().operation(number_);
  std::uint64_t offset = own_.location ? own_.location->offset : 0;
  if (own_placement_ == Placement::kSlot) {
    std::memcpy(group_.own().slot(number_, own_.bytes), own_.data, own_.bytes);
  } else if (own_placement_ == Placement::kLargeSlot) {
    offset = group_.take_large_slot(number_, deadline);
    std::memcpy(group_.own().large_slot(offset), own_.data, own_.bytes);
  } else if (own_placement_ == Placement::kStream) {
    group_.take_windows(number_, deadline);
    fill(0);
  }
  entry.name[copy_short({entry.name, sizeof(entry.name) - 1}, name)] = '\0';
  // Last, and together: it shares a line of the cache with progress, at which others look, and who
  // looks between two stores has the second wait until the line is back.
  entry.signature = record_.signature();
  entry.bytes = own_.bytes;
  entry.placement = own_placement_;
  entry.segment = own_.location ? own_.location->segment : 0;
  entry.offset = offset;
  group_.advance(number_, kEntered);
  // The next operation's, in case it is as small: the others have that line from its last use.
  if (own_.bytes <= sizeof(Operation::tiny)) {
    prefetch_line_to_write(&group_.own().operation(number_ + 1));
  }
}

const Operation& Collective::entry(int member) const {
  return group_.control_block(member).operation(number_);
}

Placement Collective::placement(int member) const {
  return member == group_.index() ? own_placement_ : entry(member).placement;
}

std::size_t Collective::bytes(int member) const {
  return member == group_.index() ? own_.bytes : entry(member).bytes;
}

void Collective::enter_all(const Deadline& deadline) {
  await_all(kEntered, deadline, in_slot());
  for (int member = 0; member < group_.size(); ++member) {
    if (member == group_.index() || entry(member).signature == record_.signature()) continue;
    throw Mismatch(member, entry(member).name);
  }
}

bool Collective::any(Placement placement) const {
  for (int member = 0; member < group_.size(); ++member) {
    if (this->placement(member) == placement) return true;
  }
  return false;
}

std::size_t Collective::largest() const {
  std::size_t largest = 0;
  for (int member = 0; member < group_.size(); ++member) {
    largest = std::max(largest, bytes(member));
  }
  return largest;
}

const std::byte* Collective::view(int member, std::size_t begin, std::uint64_t window,
                                  const Deadline& deadline) const {
  if (member == group_.index()) {
    if (own_placement_ == Placement::kStream) return group_.own().window_in(window);
    return own_placement_ == Placement::kNone ? nullptr : own_.data + begin;
  }
  const Operation& operation = entry(member);
  const ControlBlock& control_block = group_.control_block(member);
  switch (operation.placement) {
    case Placement::kNone:
      return nullptr;
    case Placement::kSlot:
      return control_block.slot(number_, operation.bytes) + begin;
    case Placement::kLargeSlot:
      return control_block.large_slot(operation.offset) + begin;
    case Placement::kStream:
      return control_block.window_in(window);
    case Placement::kMemory:
      return find_(member, operation.segment, deadline) + operation.offset + begin;
  }
  return nullptr;
}

Views Collective::views(std::size_t begin, std::uint64_t window, const Deadline& deadline) const {
  Views views(group_.size());
  for (int member = 0; member < group_.size(); ++member) {
    views[member] = view(member, begin, window, deadline);
  }
  return views;
}

// Where a member leaves its part of a window's sums: for those without windows, in their own
// memory, whose same part nobody else reads.
std::byte* Collective::result(int member, std::size_t begin, std::uint64_t window,
                              const Deadline& deadline) const {
  if (placement(member) != Placement::kMemory)
    return group_.control_block(member).window_out(window);
  if (member == group_.index()) return own_.data + begin;
  const Operation& operation = entry(member);
  return find_(member, operation.segment, deadline) + operation.offset + begin;
}

void Collective::fill(std::uint64_t window) {
  const std::size_t begin = window * group_.shape().window_bytes;
  if (begin >= own_.bytes) return;
  std::memcpy(group_.own().window_in(window), own_.data + begin,
              std::min(group_.shape().window_bytes, own_.bytes - begin));
}

void Collective::await_all(std::uint64_t phase, const Deadline& deadline, std::size_t in_slot) {
  group_.await_all(number_, phase, deadline, in_slot);
  record_.step();
}

void Collective::finish() {
  // Where all contributions are in the slots of the ring, nobody waits for others to be done.
  if (!own_.is_small(group_.shape())) group_.advance(number_, Progress::kDone);
  group_.finish(number_);
}

void Collective::gather(Take take, const Deadline& deadline) {
  enter_all(deadline);
  const bool in_place = !own_.is_small(group_.shape()) && any(Placement::kMemory);
  take_all(take, deadline);
  if (in_place) check_still_open();
}

void Collective::take_all(Take take, const Deadline& deadline) {
  const std::size_t whole = largest();
  if (!any(Placement::kStream)) {
    if (whole > 0) take(views(0, 0, deadline), 0, whole);
    const bool in_memory = own_placement_ == Placement::kMemory;
    finish();
    // What lies in the caller's own memory must not change while others read it.
    if (in_memory) await_all(Progress::kDone, deadline);
    return;
  }
  const bool streams = own_placement_ == Placement::kStream;
  const std::size_t size = group_.shape().window_bytes;
  const std::uint64_t windows = (whole + size - 1) / size;
  for (std::uint64_t w = 0; w < windows; ++w) {
    if (w + 1 < windows) {
      // There are two windows: the next part goes where the one before lay, which others may still
      // read.
      if (w > 0) await_all(taken(w - 1), deadline);
      if (streams) fill(w + 1);
      group_.advance(number_, filled(w + 1));
    }
    await_all(filled(w), deadline);
    take(views(w * size, w, deadline), w * size, std::min(whole, (w + 1) * size));
    if (w + 1 < windows) group_.advance(number_, taken(w));
  }
  finish();
  if (!streams) await_all(Progress::kDone, deadline);
}

bool Collective::reduce_early(Reducer reducer, std::size_t grain, const Deadline& deadline) {
  if (own_placement_ != Placement::kMemory || !group_.ready_soon([&] { return ready(); }))
    return false;
  for (int member = 0; member < group_.size(); ++member) {
    if (placement(member) != Placement::kMemory) return false;
  }
  enter_all(deadline);
  reduce_in_memory(reducer, grain, deadline);
  reduced_ = true;
  if (!group_.ready_soon([&] { return group_.all_at(number_, Progress::kDone); })) return false;
  finalize_in_memory(deadline);
  return true;
}

void Collective::reduce(Reducer reducer, std::size_t grain, const Deadline& deadline) {
  if (reduced_) return finalize_in_memory(deadline);
  enter_all(deadline);
  if (own_.bytes == 0) return finish();
  if (own_.is_small(group_.shape())) return reduce_at_once(reducer, deadline);
  const bool in_place = any(Placement::kMemory);
  if (any(Placement::kSlot) || any(Placement::kLargeSlot)) {
    reduce_at_once(reducer, deadline);
  } else if (any(Placement::kStream)) {
    if (group_.size() == 2 && !in_place) {
      reduce_whole_windows(reducer, deadline);
    } else {
      reduce_in_windows(reducer, grain, deadline);
    }
  } else {
    reduce_in_memory(reducer, grain, deadline);
    return finalize_in_memory(deadline);
  }
  if (in_place) check_still_open();
}

namespace {

// Member `part` of `parts` takes [begin, end) of `bytes`, in whole lines of the cache and in whole
// elements.
struct Part {
  Part(std::size_t bytes, int part, int parts, std::size_t grain) {
    const std::size_t step = std::max(kCacheLine, grain);
    const std::size_t steps = (bytes + step - 1) / step;
    const auto edge = [&](int index) {
      return std::min(
          bytes, steps * static_cast<std::size_t>(index) / static_cast<std::size_t>(parts) * step);
    };
    begin = edge(part);
    end = edge(part + 1);
  }
  std::size_t begin, end;
};

// What stays in the second-level cache while it is reduced and written out.
constexpr std::size_t kBlock = std::size_t{32} << 10;

}  // namespace

// All members reduce everything: one step, and one more for those whose contribution the others
// read where it lies.
void Collective::reduce_at_once(Reducer reducer, const Deadline& deadline) {
  record_.sent(own_.bytes * static_cast<std::size_t>(group_.size() - 1));
  if (own_placement_ != Placement::kMemory) {
    reducer(views(0, 0, deadline), own_.data, own_.bytes);
    return finish();
  }
  // Not in place: the others read this contribution where it lies until they are done.
  std::vector<std::byte> result(own_.bytes);
  reducer(views(0, 0, deadline), result.data(), own_.bytes);
  finish();
  await_all(Progress::kDone, deadline);
  std::memcpy(own_.data, result.data(), own_.bytes);
}

void Collective::await_reason_of(int member) const {
  try {
    // Never ready: the wait ends with the reason that the member publishes after it has closed its
    // memory.
    group_.wait([] { return false; }, [member] { return std::vector{member}; },
                Deadline::in(failure_timing::kClosedMemoryReason));
    // The caller has more to say. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const TimedOut&) {
  }
}

void Collective::check_still_open() const {
  const std::optional<int> closed = group_.closed();
  if (!closed) return;
  group_.throw_if_broken();
  await_reason_of(*closed);
  throw TimedOut({*closed});
}

// Part of the result, to where the member's contribution was.
void Collective::write(int member, const std::byte* view, std::size_t at, std::size_t bytes) const {
  const ShmGroup::Writing writing(group_, member);
  if (!writing.allowed()) return;  // check_still_open() comes later
  // This member's memory, which its owner has made for all to write to.
  std::memcpy(const_cast<std::byte*>(view + at), own_.data + at, bytes);
}

// Each member reduces one part, and writes it into the memory of all.
void Collective::reduce_in_memory(Reducer reducer, std::size_t grain, const Deadline& deadline) {
  Views all = views(0, 0, deadline), block(group_.size());
  const Part part(own_.bytes, group_.index(), group_.size(), grain);
  for (std::size_t at = part.begin; at < part.end; at += kBlock) {
    const std::size_t size = std::min(kBlock, part.end - at);
    for (int member = 0; member < group_.size(); ++member) block[member] = all[member] + at;
    reducer(block, own_.data + at, size);
    for (int member = 0; member < group_.size(); ++member) {
      if (member != group_.index()) write(member, all[member], at, size);
    }
  }
  // Read, and written.
  record_.sent(2 * (part.end - part.begin) * static_cast<std::size_t>(group_.size() - 1));
  finish();
}

void Collective::finalize_in_memory(const Deadline& deadline) {
  await_all(Progress::kDone, deadline);
  check_still_open();
}

// Window by window: both reduce all. To reduce half and take the other half is as much reading, and
// one step more for each window.
void Collective::reduce_whole_windows(Reducer reducer, const Deadline& deadline) {
  const auto take = [&](std::span<const std::byte* const> views, std::size_t begin,
                        std::size_t end) {
    reducer(views, own_.data + begin, end - begin);
    record_.sent(end - begin);
  };
  take_all(take, deadline);
}

// Window by window: each member reduces one part, and takes the others'.
void Collective::reduce_in_windows(Reducer reducer, std::size_t grain, const Deadline& deadline) {
  const bool streams = own_placement_ == Placement::kStream;
  const std::size_t window = group_.shape().window_bytes;
  const std::uint64_t windows = (own_.bytes + window - 1) / window;
  for (std::uint64_t w = 0; w < windows; ++w) {
    const std::size_t begin = w * window, size = std::min(window, own_.bytes - begin);
    if (w + 1 < windows) {
      if (streams) fill(w + 1);  // free: all members have reduced w - 1
      group_.advance(number_, filled(w + 1));
    }
    await_all(filled(w), deadline);
    const Part part(size, group_.index(), group_.size(), grain);
    Views views = this->views(begin, w, deadline);
    for (int member = 0; member < group_.size(); ++member) views[member] += part.begin;
    // Free: all members have taken w - 2, before they reduced w - 1.
    reducer(views, result(group_.index(), begin, w, deadline) + part.begin, part.end - part.begin);
    group_.advance(number_, taken(w));
    await_all(taken(w), deadline);
    for (int member = 0; member < group_.size(); ++member) {
      const Part theirs(size, member, group_.size(), grain);
      const std::byte* from = result(member, begin, w, deadline) + theirs.begin;
      std::byte* to = own_.data + begin + theirs.begin;
      if (from != to) std::memcpy(to, from, theirs.end - theirs.begin);
    }
    // Read to be reduced, and read as sums.
    const std::size_t own = part.end - part.begin;
    record_.sent(own * static_cast<std::size_t>(group_.size() - 1) + size - own);
  }
  finish();
  // What others read in this member's own memory must not change before.
  if (!streams) await_all(Progress::kDone, deadline);
}

}  // namespace troika::shm
