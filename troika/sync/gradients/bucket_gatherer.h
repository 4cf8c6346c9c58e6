// Gathers values from the shards that the ranks of a group have of them: after an optimiser has
// updated the shards (ZeRO stages 1 and 2), all buckets at once; or one bucket into a buffer (stage
// 3). One all-gather a bucket. ParameterGatherer and parallel/data_parallel use it.
//
// Collective: all ranks of the group gather the same buckets in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troika {

struct ShardedBucket {
  std::string label;                 // of its operations
  std::vector<std::int64_t> counts;  // elements that each rank has
  at::Tensor own;                    // this rank's
  at::Tensor whole = {};             // may have `own` inside; undefined where buffers are given
};

class BucketGatherer {
 public:
  // Gathers `buckets` over `group`. `timeout` is for each bucket.
  BucketGatherer(std::vector<ShardedBucket> buckets, Group group, Seconds timeout);

  // Ends the label of every operation that is started from now on.
  void label_with(const std::string& suffix) { suffix_ = suffix; }
  void set_timeout(Seconds timeout) { timeout_ = timeout; }

  // Starts to gather a bucket into `output`.
  [[nodiscard]] Work gather(std::size_t bucket, const at::Tensor& output) const;
  // Start to gather all buckets, or the first `count`, where they are whole.
  void start_all() { start_first(buckets_.size()); }
  void start_first(std::size_t count);
  // Waits for one of them, or for all: its values can be read, and own ones be written, then. Throw
  // DeadlineError, PeerError.
  void wait(std::size_t bucket);
  void wait();

 private:
  std::vector<ShardedBucket> buckets_;
  Group group_;
  Seconds timeout_;
  std::vector<Work> works_;  // by bucket
  std::string suffix_;
};

}  // namespace troika
