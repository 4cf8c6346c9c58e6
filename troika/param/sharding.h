// The ranks among which the parameters of an arena are sharded, and what each keeps.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/bucket_sizes.h>

namespace troika {

// When the gradients of a step of several microbatches are cut among ranks, from stage 2 on: once,
// when all of a rank's microbatches are in, or after each of them.
enum class CutGradients { kLastMicrobatch, kEachMicrobatch };

// The stages of ZeRO (Rajbhandari et al. 2020) over the data axis. At stage 0 every rank keeps
// everything. Stage 1 cuts the optimiser's state, and masters that are no working weights, among
// the ranks of `shard`. Stage 2 cuts gradients, too. Stage 3 also cuts working weights: a unit's
// are gathered before they are used.
struct Sharding {
  int stage = 0;
  // The group over which gradients are reduced first, at every stage.
  Group shard = {};
  // The group over which they are reduced then: the ranks with the same place in their shard
  // groups, which keep the same shards (hybrid sharding). A group of one where `shard` is the whole
  // data axis.
  Group replicate = {};
  // The most microbatches that any rank has in a step. With more than one, and kLastMicrobatch,
  // gradients are kept whole until the last, as at stage 1, and ranks sum their microbatches before
  // ranks are summed, at every stage. With kEachMicrobatch ranks are summed first, and all of them
  // have equally many microbatches.
  int microbatches_per_step = 1;
  CutGradients cut_gradients = CutGradients::kLastMicrobatch;
  // True if a stage computes the gradients of inputs and of weights apart. The gradients of all its
  // units are then begun before the first is complete, and are kept whole likewise.
  bool splits_backward = false;
  BucketSizes buckets = {};
};

}  // namespace troika
