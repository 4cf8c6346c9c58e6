// Internal. Finds replicas whose parameters have come apart. In each step a rank tells a checksum
// of four bits: of the writes that it knows of, and of a segment of the values. Where checksums
// differ, the ranks compare everything, and throw or make values equal.
#pragma once

#include <troika/parallel/data_parallel/value_digest.h>
#include <troika/parallel/data_parallel/write_tracker.h>
#include <troika/session/session.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troika::detail {

class ReplicaChecker {
 public:
  // Selects whether values are compared beside the numbers of writes.
  enum class Values { kChecked, kUnchecked };
  // Checks `parameters`, which are all of the module's, also those that are not trained. `writes`
  // tracks `slots`; both must outlive this.
  ReplicaChecker(std::vector<NamedTensor> parameters, std::span<const GradientSlot> slots,
                 WriteTracker& writes, Session session, Values values);

  // Returns a number in 0..15, the same on all ranks with the same parameters.
  [[nodiscard]] double checksum() const;
  // Counts an average that all ranks have completed.
  void count_average() { ++averages_; }
  // Collective: compares all parameters. Throws UsageError on every rank naming the parameter and
  // the ranks that differ, unless rounding explains it. In that case the others take the values of
  // rank 0.
  void resolve();
  // Collective with ZeRO, after resolve(): throws UsageError likewise for writes that the
  // optimiser's last step has hidden.
  void compare_writes_before_update() const;
  // Tells that all ranks have the same values.
  void reset();
  // Notes that an optimiser's step begins, which will make values equal with ZeRO.
  void begin_update();

 private:
  std::vector<NamedTensor> parameters_;
  std::span<const GradientSlot> slots_;
  WriteTracker& writes_;
  Session session_;
  std::optional<ValueDigest> digest_;
  std::uint64_t averages_ = 0;            // equal on all ranks
  std::uint64_t values_equal_until_ = 0;  // this average: they have just been made equal
  std::vector<std::uint32_t> writes_before_update_;
};

}  // namespace troika::detail
