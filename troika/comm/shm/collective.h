// One collective of a shared-memory group, whatever it is: every member makes its contribution
// visible to all, in a slot (small ones), where it lies (in memory that its owner has allocated for
// all), or piece by piece through two windows; and takes what it needs from the others'. Tensors
// and arithmetic are the caller's.
#pragma once

#include <troika/base/function_ref.h>
#include <troika/comm/shm/shm_group.h>
#include <troika/observe/recorder.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika::shm {

// Thrown when members are in different operations, or disagree on sizes.
class Mismatch : public std::runtime_error {
 public:
  Mismatch(int member, std::string theirs)
      : std::runtime_error("mismatch"), member_(member), theirs_(std::move(theirs)) {}
  [[nodiscard]] int member() const { return member_; }
  // Returns that member's name for its operation.
  [[nodiscard]] const std::string& theirs() const { return theirs_; }

 private:
  int member_;
  std::string theirs_;
};

// The location of a contribution in memory that its owner has allocated for all.
struct Location {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};
// Finds where a member's segment is mapped in this process. Throws TimedOut, Broken.
using FindSegment =
    std::function<std::byte*(int member, std::uint32_t segment, const Deadline& deadline)>;

struct Contribution {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::optional<Location> location = {};  // if in memory for all
  // The bound on the bytes of every member's contribution; the same on all members. If it fits into
  // a slot, small or large, so do all contributions that are not in memory for all.
  std::size_t at_once = std::numeric_limits<std::size_t>::max();

  // Returns whether all contributions are in the slots of the ring.
  [[nodiscard]] bool is_small(const Shape& shape) const { return at_once <= shape.slot_bytes; }
};

// The addresses of each member's bytes; allocates only for large groups.
class Views {
 public:
  explicit Views(int members) : size_(static_cast<std::size_t>(members)) {
    if (size_ > few_.size()) many_.resize(size_);
  }
  [[nodiscard]] const std::byte*& operator[](int member) {
    return start()[static_cast<std::size_t>(member)];
  }
  // NOLINTNEXTLINE(google-explicit-constructor): a span is what it is read as.
  operator std::span<const std::byte* const>() const {
    return {many_.empty() ? few_.data() : many_.data(), size_};
  }

 private:
  [[nodiscard]] const std::byte** start() { return many_.empty() ? few_.data() : many_.data(); }

  std::array<const std::byte*, 16> few_;
  std::vector<const std::byte*> many_;
  std::size_t size_;
};

class Collective {
 public:
  // `number` counts the group's operations. `record` counts each wait for the others, and the bytes
  // that a reduction reads from the others' memory or writes to it. The caller counts the bytes
  // that a gather takes.
  Collective(ShmGroup& group, const FindSegment& find, std::uint64_t number,
             const OperationRecord& record, const Contribution& own)
      : group_(group),
        find_(find),
        number_(number),
        record_(record),
        own_(own),
        own_placement_(placement_of(own, group.shape())) {}

  // Makes the contribution visible, as far as that goes without waiting for the others to take it.
  // Must be called first. Waits for a ring entry that the others still need.
  void announce(std::string_view name, const Deadline& deadline);

  // Returns whether reduce() of so many bytes from each member takes one step, where they are not
  // in memory for all. All members then reduce all.
  [[nodiscard]] static bool reduces_at_once(std::size_t bytes, int members, const Shape& shape);
  // Returns how a contribution becomes visible. The caller must make those in large slots and
  // windows one at a time, in order.
  [[nodiscard]] static Placement placement_of(const Contribution& own, const Shape& shape);

  // Takes bytes [begin, end) of every member's contribution, window by window. views[m] points to
  // byte `begin` of member m; nothing lies past `bytes(m)`.
  using Take = FunctionRef<void(std::span<const std::byte* const> views, std::size_t begin,
                                std::size_t end)>;
  // Waits for the others and calls `take` for each window. On return `own.data` is the caller's
  // again.
  void gather(Take take, const Deadline& deadline);

  // Computes `bytes` of the result from the same bytes of all members; `out` may be one of `views`.
  using Reducer =
      FunctionRef<void(std::span<const std::byte* const> views, std::byte* out, std::size_t bytes)>;
  // Reduces contributions that all have the same size; the result takes the place of each. `grain`
  // bytes are never cut.
  void reduce(Reducer reducer, std::size_t grain, const Deadline& deadline);
  // Reduces this member's part if all members are there, as far as that needs nothing more of them.
  // The others would else wait for it until this member calls reduce(). Returns whether that was
  // everything; if not, reduce() does the rest. Waits for a segment of another member that is new
  // here.
  [[nodiscard]] bool reduce_early(Reducer reducer, std::size_t grain, const Deadline& deadline);

  // Returns whether gather() or reduce() would find all members there.
  [[nodiscard]] bool ready() const { return group_.all_at(number_, kEntered, in_slot()); }
  // Returns whether gather() or reduce() would throw by now instead of waiting for members that are
  // not there.
  [[nodiscard]] bool is_over(const Deadline& deadline) const {
    return group_.is_over([&] { return group_.missing_at(number_, kEntered); }, deadline);
  }
  // Returns the bytes that a member contributes. It must have entered.
  [[nodiscard]] std::size_t bytes(int member) const;
  // Waits until all members have entered; after that any of them may be waited for. Throws Mismatch
  // if one of them has another signature.
  void enter_all(const Deadline& deadline);

 private:
  static constexpr std::uint64_t kEntered = 1;
  // Phases of window w: its owner has filled it; the member has taken what it needs from
  // all contributions (or, in a reduction, reduced its part of them). A member fills w + 1 before
  // it takes w.
  static std::uint64_t filled(std::uint64_t w) { return w == 0 ? kEntered : 2 * w; }
  static std::uint64_t taken(std::uint64_t w) { return 2 * w + 3; }

  // Returns what the others are likely to have in their slots: as many bytes as this member.
  [[nodiscard]] std::size_t in_slot() const {
    return own_placement_ == Placement::kSlot ? own_.bytes : 0;
  }
  // Returns another member's entry. This member reads nothing of its own back; ShmGroup::progress
  // says why.
  [[nodiscard]] const Operation& entry(int member) const;
  [[nodiscard]] Placement placement(int member) const;
  [[nodiscard]] bool any(Placement placement) const;
  [[nodiscard]] std::size_t largest() const;
  [[nodiscard]] const std::byte* view(int member, std::size_t begin, std::uint64_t window,
                                      const Deadline& deadline) const;
  [[nodiscard]] Views views(std::size_t begin, std::uint64_t window,
                            const Deadline& deadline) const;
  [[nodiscard]] std::byte* result(int member, std::size_t begin, std::uint64_t window,
                                  const Deadline& deadline) const;
  void fill(std::uint64_t window);
  void await_all(std::uint64_t phase, const Deadline& deadline, std::size_t in_slot = 0);
  // Finishes the operation here. No entry may be read after it: it may be another operation's.
  void finish();
  void reduce_at_once(Reducer reducer, const Deadline& deadline);
  void write(int member, const std::byte* view, std::size_t at, std::size_t bytes) const;
  // Waits for the reason of a member that has closed its memory. Returns if it gives none. Throws
  // Broken.
  void await_reason_of(int member) const;
  // Throws Broken or TimedOut if a member has closed its memory. Must follow the last read of
  // memory that its owner may have been given back because its operation has failed.
  void check_still_open() const;
  void reduce_in_memory(Reducer reducer, std::size_t grain, const Deadline& deadline);
  // Waits, after reduce_in_memory(), until the others have reduced their parts.
  void finalize_in_memory(const Deadline& deadline);
  void take_all(Take take, const Deadline& deadline);
  void reduce_whole_windows(Reducer reducer, const Deadline& deadline);
  void reduce_in_windows(Reducer reducer, std::size_t grain, const Deadline& deadline);

  ShmGroup& group_;
  const FindSegment& find_;
  std::uint64_t number_;
  OperationRecord record_;
  Contribution own_;
  Placement own_placement_;
  bool reduced_ = false;  // this member's part, in memory
};

}  // namespace troika::shm
