// Internal. ZeRO 1 and 2 for a module of the user's own: the shards of its parameters that this
// rank's optimiser updates, as tensors for torch::optim, and the gathering of values after its
// step.
#pragma once

#include <troika/parallel/data_parallel/gradient_buckets.h>
#include <troika/param/parameter_shard.h>
#include <troika/session/session.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class ParameterShards {
 public:
  // Moves the parameters' values into those of the buckets. `reducer` reduces the buckets; it and
  // `slots` must outlive this.
  ParameterShards(std::span<GradientSlot> slots, const GradientBuckets& buckets,
                  BucketReducer& reducer, const Session& session);

  // Returns the shards that this rank updates of a parameter, by its index among the slots: leaves
  // without memory of their own.
  [[nodiscard]] std::vector<at::Tensor> shards_of(std::size_t slot) const;
  // Returns all of them, with the parameters that they are of. Throws UsageError naming a parameter
  // that is not row-major: elements of its shards lie in another order.
  [[nodiscard]] std::vector<ParameterShard> named_shards() const;
  // Sets the shards' gradients to the averages, but for slots that no rank has used (`used`, of
  // each slot; empty: all are), and takes those of the parameters away.
  void publish_gradients(std::span<const std::int32_t> used);
  // Drops the gradients that passes without an average have added up on the parameters.
  void drop_gradients();
  // Returns the sum of the squares of the shards' gradients.
  [[nodiscard]] double sum_of_squares() const;
  void scale_gradients(double factor);
  // Collective: own shards have been written to; returns when values are whole. Counts as a write
  // to every parameter.
  void gather();
  // Copies the values of a parameter that has got other memory (torch::load) into the buckets, and
  // puts it there again.
  static void copy_values_into_bucket(GradientSlot& slot);

 private:
  struct Shard {
    std::size_t slot;
    std::int64_t begin;  // in the parameter
    at::Tensor values, gradient;
  };
  std::span<GradientSlot> slots_;
  BucketReducer& reducer_;
  BucketGatherer gatherer_;
  std::vector<Shard> shards_;
};

}  // namespace troika::detail
