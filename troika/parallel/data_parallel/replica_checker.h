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
  // Whether values are compared beside the numbers of writes.
  enum class Values { kChecked, kUnchecked };
  // `parameters` are all of the module's, also those that are not trained. `writes` is of `slots`;
  // both must outlive this.
  ReplicaChecker(std::vector<NamedTensor> parameters, std::span<const GradientSlot> slots,
                 WriteTracker& writes, Session session, Values values);

  // In 0..15, the same on all ranks whose parameters are.
  [[nodiscard]] double checksum() const;
  // All ranks are done with an average.
  void count_average() { ++averages_; }
  // Collective: compares all. Throws UsageError on every rank naming the parameter and the ranks
  // that differ, but where rounding explains it: there the others take the values of rank 0.
  void resolve();
  // Collective with ZeRO, after resolve(): the same of writes that the optimiser's last step has
  // hidden.
  void compare_writes_before_update() const;
  // All ranks have the same values.
  void reset();
  // An optimiser's step begins, which will make values equal with ZeRO.
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
