// Sums gradients over the data axis while the backward pass is still going on. Units are grouped
// into buckets from the last to the first, the order in which they become ready; a bucket is one
// contiguous slice of the arena, so nothing is copied.
//
// One step of S gradient bytes puts what the engine's all-reduce of S bytes puts on the wire
// (docs/engines.md), whatever the buckets.
#pragma once

#include <troika/comm/group.h>
#include <troika/nn/stage.h>
#include <troika/parallel/data/bucket_sizes.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

class GradientReducer final : public GradientSink {
 public:
  // Units [0, arena.units()). Every rank of `group` must have the same arena layout.
  GradientReducer(Arena& arena, Group group, BucketSizes sizes = {});

  // A new step, in which every unit with parameters is going to be ready `microbatches` times on
  // this rank (none: it has no share in the step, and its gradients count as zero). `timeout` is
  // for each bucket.
  void begin_step(int microbatches, Seconds timeout);
  // Starts the unit's bucket once all of the bucket's units have been ready for the last time.
  void unit_ready(int unit) override;
  // Starts what has not been started (parameters without a contribution count as zero) and waits
  // for all buckets. Then every gradient is the sum over the axis. Throws DeadlineError or
  // PeerError.
  void finish();

  [[nodiscard]] int buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Bucket {
    int first_unit = 0;
    int last_unit = 0;     // one past the end
    int contributors = 0;  // units with parameters
    int missing = 0;       // calls of unit_ready() before it may start
    bool started = false;
    std::string label;
    Work work;
  };
  void start(Bucket& bucket);

  Arena& arena_;
  Group group_;
  Seconds timeout_{60};
  std::vector<Bucket> buckets_;                         // in the order in which they become ready
  std::vector<int> bucket_of_;                          // by unit
  std::vector<std::vector<Parameter*>> parameters_of_;  // by unit
};

}  // namespace troika
