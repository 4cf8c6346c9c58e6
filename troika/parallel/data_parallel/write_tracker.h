// Internal. Counts the writes to a module's trained parameters on this rank: by autograd's version
// counters, and where a parameter has got other memory (torch::load, to()). What ranks tell each
// other of the counts is in replica_checker.h.
#pragma once

#include <troika/parallel/data_parallel/gradient_slot.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troika::detail {

class WriteTracker {
 public:
  // Tracks `slots`, which must outlive this. `on_move` is called for a parameter that has got other
  // memory, and may move it again. It may be null.
  WriteTracker(std::span<GradientSlot> slots, std::function<void(GradientSlot&)> on_move);

  // Looks for parameters with other memory. Throws UsageError naming one that has changed its
  // dtype, device or shape.
  void find_moves();
  // Begins all counts anew, when all ranks have the same values. Calls find_moves() first if there
  // is an `on_move`, and throws as it does.
  void reset();

  // Return the number of writes that autograd has counted since reset(), and whether find_moves()
  // has found a move since.
  [[nodiscard]] std::uint64_t count() const { return sum_of_versions() - base_sum_; }
  [[nodiscard]] bool moved() const { return moved_; }
  // Returns the number of writes to each parameter since reset(), moves included.
  [[nodiscard]] std::vector<std::uint32_t> writes() const;

  // Returns autograd's counters, by slot.
  [[nodiscard]] std::vector<std::uint32_t> versions() const;
  // Throws UsageError naming the first parameter whose counter differs from that in `versions`.
  void throw_if_written(std::span<const std::uint32_t> versions) const;

 private:
  [[nodiscard]] std::uint64_t sum_of_versions() const;

  std::span<GradientSlot> slots_;
  std::function<void(GradientSlot&)> on_move_;
  std::vector<const void*> data_;     // where values were last seen
  std::vector<std::uint32_t> moves_;  // since reset(), as are the next two
  std::vector<std::uint32_t> base_versions_;
  std::uint64_t base_sum_ = 0;
  bool moved_ = false;
};

}  // namespace troika::detail
