// The arena: all parameters of a rank in few contiguous storages (working weights, masters,
// gradients, the optimiser's state), cut into units, cut into slots aligned to 64 bytes. Buckets,
// ZeRO shards, fused optimiser steps, clipping, dumps and files are slices of it. What a rank keeps
// of each storage, all or its own shard, is a matter of the ZeRO stage (arena_layout.h,
// sharding.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/param/arena_layout.h>
#include <troika/param/parameter.h>
#include <troika/param/sharding.h>

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

// The elements [begin, begin + count) of a parameter that this rank updates, as flat views. Of a
// frozen parameter the rank keeps them, without a gradient; `master` is its working weight.
struct LocalShard {
  std::size_t parameter = 0;  // in Arena::parameters()
  std::int64_t begin = 0;
  std::int64_t count = 0;
  at::Tensor master;
  at::Tensor working_weight;  // the master itself where the two are one
  at::Tensor gradient;        // the sum over the data axis, once it has been reduced
};

enum class Storage { kWorkingWeights, kMasters, kGradients, kState };

class Arena {
 public:
  // Lays out `specs` by unit (ascending), inside a unit in the order given, frozen ones behind all
  // trained ones. A frozen parameter has its working weight alone. A spec with `tied_to`
  // gets the parameter it names, which must be among `specs` and have its shape. The shard group's
  // `allocate` provides the storage of the host; on another device it is the device's. Values are
  // not initialised: call initialize() or load. Throws InternalError on a duplicate name.
  Arena(std::span<const ParameterSpec> specs, NumericTypes types, Sharding sharding,
        at::Device device = at::kCPU);
  // Lays out `specs` without shards: ZeRO stage 0 over `group`.
  Arena(std::span<const ParameterSpec> specs, NumericTypes types, const Group& group,
        at::Device device = at::kCPU)
      : Arena(specs, types, Sharding{.shard = group}, device) {}

  [[nodiscard]] NumericTypes types() const { return types_; }
  // Returns the device that all of it lies on; a dry run's is meta.
  [[nodiscard]] at::Device device() const { return masters_.device(); }
  [[nodiscard]] const Sharding& sharding() const { return sharding_; }
  [[nodiscard]] const ArenaLayout& layout() const { return layout_; }
  // Returns the parameters in storage order, tied ones left out.
  [[nodiscard]] std::span<const std::unique_ptr<Parameter>> parameters() const {
    return parameters_;
  }
  // Return the local shards in storage order, and those of trained parameters, which are the first
  // of them. At stage 0 each parameter is one shard.
  [[nodiscard]] std::span<const LocalShard> local_shards() const { return local_shards_; }
  [[nodiscard]] std::span<const LocalShard> trained_shards() const {
    return local_shards().first(trained_shards_);
  }
  // Returns the parameter of a global name; for a tied name, the parameter that it is tied to.
  // Throws InternalError if there is none.
  [[nodiscard]] Parameter& parameter(std::string_view name) const;
  [[nodiscard]] int units() const { return static_cast<int>(buckets_of_.size()); }
  // Returns positions in layout().buckets() of the buckets that the unit computes with. These are
  // its own bucket, and those of parameters that its own are tied to. Ascending; empty for a unit
  // without parameters.
  [[nodiscard]] std::span<const std::size_t> buckets_of(int unit) const;
  // Returns those of them that are trained.
  [[nodiscard]] std::span<const std::size_t> trained_buckets_of(int unit) const;

  // Return flat views over the trained parameters of units [first, last), padding included (padding
  // is always zero). Throw InternalError where only the own shard is kept.
  [[nodiscard]] at::Tensor gradients(int first_unit, int last_unit) const;
  [[nodiscard]] at::Tensor masters(int first_unit, int last_unit) const;

  // Return whether working weights are kept all the time (stages 0 to 2), and whether memory for
  // whole gradients is.
  [[nodiscard]] bool keeps_working_weights() const { return sharding_.stage < 3; }
  [[nodiscard]] bool keeps_gradients() const;
  // Return a bucket's working weights as bytes: all of them (InternalError unless kept), and the
  // own shard.
  [[nodiscard]] at::Tensor working_weights_of(const Bucket& bucket) const;
  [[nodiscard]] at::Tensor own_working_weights_of(const Bucket& bucket) const;
  // Return a trained bucket's gradients likewise, in the master's type.
  [[nodiscard]] at::Tensor gradients_of(const Bucket& bucket) const;
  [[nodiscard]] at::Tensor own_gradients_of(const Bucket& bucket) const;
  // Give the bucket's parameters working weights in `bytes` (bucket.working_bytes()), or gradients
  // in `elements` (bucket.count()). If undefined, take them away.
  void set_working_weights(const Bucket& bucket, const at::Tensor& bytes);
  void set_gradients(const Bucket& bucket, const at::Tensor& elements);

  // Allocates optimiser state: one more value for each element of trained_shards(), in the master's
  // type, zeroed.
  [[nodiscard]] at::Tensor allocate_state();
  // Returns the flat view of a shard, by its position in trained_shards(), in a tensor made by
  // allocate_state().
  [[nodiscard]] at::Tensor view_of(std::size_t shard, const at::Tensor& state) const;
  // Returns the elements of whole parameters, padding left out.
  [[nodiscard]] std::int64_t parameter_count() const;
  // Returns the bytes held on this rank, padding included. Masters that serve as working weights
  // count as masters.
  [[nodiscard]] std::int64_t bytes(Storage kind) const {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  // Returns the bytes of trained parameters among those of the masters.
  [[nodiscard]] std::int64_t trained_master_bytes() const;

  // Draws all masters as their specs say, from (seed, global name, global index), and all working
  // weights that are kept. Needs no communication.
  void initialize(std::uint64_t seed);
  // Rounds the masters of the local shards to their working weights. Has no effect where they are
  // the same memory.
  void publish();
  // Begins a new step, in which every gradient slot is unclaimed.
  void release_gradients();

 private:
  void allocate_storages();
  void make_parameters(std::span<const ParameterSpec* const> specs);
  void make_local_shards();
  void find_buckets(std::span<const ParameterSpec> specs);
  // Adds the names of tied parameters to by_name_.
  void name_tied(std::span<const ParameterSpec> specs);
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes, Storage kind);
  [[nodiscard]] bool is_mixed() const { return types_.compute != types_.master; }
  [[nodiscard]] bool keeps_masters() const;
  // Returns whether the working weight of a parameter is all that there is of it.
  [[nodiscard]] bool lacks_master(const ParameterSpec& spec) const {
    return is_mixed() && spec.frozen;
  }
  [[nodiscard]] std::int64_t master_size() const;
  // Returns the view of a parameter's working weight in those of its bucket.
  [[nodiscard]] at::Tensor working_weight_in(std::size_t parameter, const ParameterSpec& spec,
                                             std::int64_t working_begin,
                                             const at::Tensor& bytes) const;
  [[nodiscard]] at::Tensor flat(const at::Tensor& storage, int first_unit, int last_unit) const;

  NumericTypes types_;
  at::Device given_device_;
  Sharding sharding_;
  ArenaLayout layout_;
  std::array<std::int64_t, 4> bytes_{};
  at::Tensor masters_;  // whole, or own shards
  at::Tensor
      working_weights_;  // bytes: whole, or own shards; shares the masters' memory where they serve
  at::Tensor gradients_;  // whole, or own shards
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<LocalShard> local_shards_;
  std::size_t trained_shards_ = 0;
  std::vector<std::pair<std::string, Parameter*>> by_name_;  // sorted
  std::vector<std::vector<std::size_t>> buckets_of_;         // by unit
};

// Returns the initial values of the slice of `spec` that is held here, drawn in double precision.
[[nodiscard]] at::Tensor initial_values(const ParameterSpec& spec, std::uint64_t seed);
// Returns elements [begin, begin + count) of them, flat.
[[nodiscard]] at::Tensor initial_values(const ParameterSpec& spec, std::uint64_t seed,
                                        std::int64_t begin, std::int64_t count);

}  // namespace troika
