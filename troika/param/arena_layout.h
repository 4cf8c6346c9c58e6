// Where parameters lie: in slots, in units, in buckets, and how each bucket is cut into shards for
// ZeRO (Rajbhandari et al. 2020). Pure arithmetic on shapes, equal on all ranks that share buckets.
//
// A bucket is a run of whole units that moves between ranks as one: the unit in which gradients are
// reduced and working weights gathered. Its shards are cut where a parameter begins or at a whole
// number of chunks from there, so that what is summed by chunks has the same bits however it is
// cut.
//
// Trained parameters come first, and frozen ones lie behind all of them, in buckets of their own.
// What only trained parameters have (gradients, optimiser state, masters in mixed precision) is
// then the beginning of a storage, and the shards of trained buckets are cut as if there were no
// frozen parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/bucket_sizes.h>
#include <troika/param/spec.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// The types of one run: `compute` is for computation, `master` for masters, gradients and optimiser
// state.
struct NumericTypes {
  at::ScalarType compute;
  at::ScalarType master;
  friend bool operator==(const NumericTypes&, const NumericTypes&) = default;

  // Returns the type of a parameter's working weight.
  [[nodiscard]] at::ScalarType working(const ParameterSpec& spec) const {
    return spec.keep_fp32 ? master : compute;
  }
  // Returns the type of the value that lasts: a master, or the working weight of a frozen
  // parameter, which has no master beside it.
  [[nodiscard]] at::ScalarType lasting(const ParameterSpec& spec) const {
    return spec.frozen ? working(spec) : master;
  }
};

// The size of the chunks that loops and sums over elements use, counted from the start of a
// parameter.
inline constexpr std::int64_t kChunkElements = 8192;

struct ArenaLayoutOptions {
  int stage = 0;   // of ZeRO, 0 to 3; at 3 each unit is a bucket of its own
  int shards = 1;  // that a bucket is cut into; 1 at stage 0
  int shard = 0;   // the own one
  BucketSizes buckets = {};
};

// The place of one parameter.
struct Slot {
  std::int64_t offset = 0;          // in elements, of a storage that holds all parameters
  std::int64_t count = 0;           // elements
  std::int64_t working_offset = 0;  // in bytes, of the storage of all working weights
  std::int64_t working_element_size =
      0;  // bytes of an element there; 0: the master is the working weight
};

struct Bucket {
  bool frozen = false;  // no parameter of it is trained; else all are
  int first_unit = 0;
  int last_unit = 0;  // one past the end
  std::size_t first_parameter = 0;
  std::size_t last_parameter = 0;             // one past the end
  std::vector<std::int64_t> borders;          // of the shards, in elements; one more than shards
  std::vector<std::int64_t> working_borders;  // the same places in bytes of working weights
  // The beginning of the own shard, in elements and in bytes, in storages that hold own shards
  // alone.
  std::int64_t own_offset = 0;
  std::int64_t own_working_offset = 0;

  [[nodiscard]] std::int64_t begin() const { return borders.front(); }
  [[nodiscard]] std::int64_t count() const { return borders.back() - borders.front(); }
  [[nodiscard]] std::int64_t working_bytes() const {
    return working_borders.back() - working_borders.front();
  }
};

// Elements [begin, begin + count) of a parameter, in the own shard.
struct ShardRange {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

class ArenaLayout {
 public:
  // Lays out `specs`, none of them tied: trained ones ordered by unit, then frozen ones likewise.
  // Throws InternalError on impossible options.
  ArenaLayout(std::span<const ParameterSpec* const> specs, NumericTypes types,
              const ArenaLayoutOptions& options);

  // Returns the slots, by parameter.
  [[nodiscard]] std::span<const Slot> slots() const { return slots_; }
  // Return the buckets, in storage order, and the trained ones, which are the first of them.
  [[nodiscard]] std::span<const Bucket> buckets() const { return buckets_; }
  [[nodiscard]] std::span<const Bucket> trained_buckets() const {
    return buckets().first(trained_buckets_);
  }
  // Returns the ranges, in storage order. Every element of every parameter is in one range of one
  // shard.
  [[nodiscard]] std::span<const ShardRange> shard_ranges() const { return shard_ranges_; }
  // Returns the own shard.
  [[nodiscard]] int shard() const { return options_.shard; }
  [[nodiscard]] int units() const { return static_cast<int>(unit_begin_.size()) - 1; }
  // Returns the first element of a unit's trained parameters; `unit` may be units().
  [[nodiscard]] std::int64_t unit_begin(int unit) const {
    return unit_begin_[static_cast<std::size_t>(unit)];
  }
  // Return the size of whole storages, padding included: elements, and bytes of working weights.
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::int64_t working_bytes() const { return working_bytes_; }
  // Return the same sizes of storages that hold own shards alone.
  [[nodiscard]] std::int64_t own_elements() const { return own_elements_; }
  [[nodiscard]] std::int64_t own_working_bytes() const { return own_working_bytes_; }
  // Return the elements of trained parameters among elements() and own_elements(), which come
  // first.
  [[nodiscard]] std::int64_t trained_elements() const { return unit_begin_.back(); }
  [[nodiscard]] std::int64_t own_trained_elements() const { return own_trained_elements_; }

 private:
  void place(std::span<const ParameterSpec* const> specs, NumericTypes types);
  // Appends the buckets of parameters [first, last).
  void group_units(std::span<const ParameterSpec* const> specs, std::size_t first, std::size_t last,
                   std::int64_t element_size);
  void cut(std::span<const ParameterSpec* const> specs);
  void collect_shard_ranges();

  ArenaLayoutOptions options_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<ShardRange> shard_ranges_;
  std::size_t trained_buckets_ = 0;
  std::vector<std::int64_t> unit_begin_ = {};
  std::int64_t elements_ = 0;
  std::int64_t working_bytes_ = 0;
  std::int64_t own_elements_ = 0;
  std::int64_t own_trained_elements_ = 0;
  std::int64_t own_working_bytes_ = 0;
};

}  // namespace troika
