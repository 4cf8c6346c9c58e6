// Gathers working weights from the shards that ranks keep. At ZeRO stages 1 and 2 once a step:
// after the optimiser has updated the own shard, all gathers start at once and are waited for where
// they are first read. At stage 3 a unit at a time, into a few buffers: the one that is needed, the
// one after it ahead of time, and the one before it, since the last of the forward pass is the
// first of the backward pass.
//
// The order of gathers follows from the order of the calls, which is the same on all ranks of the
// shard group; never from what has arrived. Where a pass leaves its stage of a pipeline, the unit
// fetched ahead is the one that the step before went on with there: steps are alike.
#pragma once

#include <troika/comm/group.h>
#include <troika/nn/stage.h>
#include <troika/param/arena.h>
#include <troika/sync/gradients/bucket_gatherer.h>
#include <troika/sync/gradients/buffer_pool.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

class ParameterGatherer {
 public:
  // Gathers over the shard group of `arena.sharding()`.
  ParameterGatherer(Arena& arena, Seconds timeout);

  // Begins the passes of a step; `timeout` is for one gather.
  void begin_step(Seconds timeout);
  // Ends the passes of the step. Waits for every gather, as wait() does.
  void end_step();
  // Ends the label of every gather that is started from now on: ", microbatch 3 (stage 1)", or
  // empty outside of a pass.
  void label_with(const std::string& pass) { gatherer_.label_with(pass); }
  // Returns when the unit's values can be read. At stage 3 starts the gather of the next unit in
  // `direction`. Throws DeadlineError, PeerError.
  void unshard(int unit, Direction direction);
  // Lets another unit use the unit's buffer, at stage 3.
  void reshard(int unit);
  // Waits for every gather that has been started; own values may be written afterwards. At stages 1
  // and 2, all values can be read.
  void wait();
  // Handle a change of own values: of the trained ones by the optimiser, or of any. Stages 1 and 2
  // start to gather what may have changed. Stage 3 drops the values it has gathered, and starts
  // with the first unit.
  void after_update() { refresh(arena_.layout().trained_buckets().size()); }
  void refresh() { refresh(arena_.layout().buckets().size()); }

  // Return statistics of stage 3: the memory of the buffers, the most buffers in use at once, and
  // the gathered buckets. Those are positions in the arena's buckets since the last refresh(), in
  // order.
  [[nodiscard]] std::int64_t buffer_bytes() const { return pool_.bytes(); }
  [[nodiscard]] std::size_t most_buffers() const { return most_; }
  [[nodiscard]] const std::vector<std::size_t>& gathers() const { return gathers_; }

 private:
  // A bucket whose values are in a buffer, or on their way there.
  struct Resident {
    std::size_t bucket;
    at::Tensor buffer;
    Work work;
    int users = 0;  // of its parameters' values, which are there while there is a user
  };
  [[nodiscard]] Resident* find(std::size_t bucket);
  // Handles a change of the first `buckets`.
  void refresh(std::size_t buckets);
  // Starts the gather of a bucket that is not resident.
  void fetch(std::size_t bucket);
  void prefetch(int unit, Direction direction);
  // Starts the gathers of the unit's buckets that are not resident.
  void fetch_unit(int unit);
  // Waits for the bucket, and gives its parameters their values.
  void attach_working_weights(std::size_t bucket);
  // Drops the least recently wanted bucket that is not in use; returns whether there was one.
  bool evict_oldest();

  Arena& arena_;
  BucketGatherer gatherer_;
  std::vector<Resident> residents_;  // stage 3; the one wanted last comes last
  std::size_t most_residents_;
  BufferPool pool_;
  std::size_t most_ = 0;
  std::vector<std::size_t> gathers_;
  // The units that passes of a step began with, but for its first pass.
  std::vector<int> began_with_, began_with_before_;
  bool in_step_ = false;
  bool left_stage_ = false;  // in this step
};

}  // namespace troika
