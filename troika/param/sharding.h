// The ranks among which the parameters of an arena are sharded, and what each keeps.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/bucket_sizes.h>

namespace troika {

// Stages of ZeRO (Rajbhandari et al. 2020) over the data axis:
//   0  every rank keeps everything
//   1  the optimiser's state, and masters that are no working weights, are cut among the ranks of
//   `shard` 2  gradients too 3  working weights too: a unit's are gathered before they are used
struct Sharding {
  int stage = 0;
  // Gradients are reduced over this group first, at every stage.
  Group shard = {};
  // Then over this one: the ranks with the same place in their own shard groups, which keep the
  // same (hybrid sharding). Of one where `shard` is the whole data axis.
  Group replicate = {};
  // The most that any rank has in a step. With more than one, gradients are kept whole until the
  // last, as at stage 1: ranks sum their microbatches before ranks are summed, at every stage.
  int microbatches_per_step = 1;
  // Whether a stage's gradients of inputs and of weights are computed apart. Then those of all its
  // units are begun before the first is complete, and are kept whole likewise.
  bool splits_backward = false;
  BucketSizes buckets = {};
};

}  // namespace troika
