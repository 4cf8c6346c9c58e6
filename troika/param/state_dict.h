// All that a run consists of: named tensors, whose parts lie on the ranks, and named numbers.
// Checkpoints, dumps, saved models and updates between processes are read and written through it,
// on any layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/arena.h>
#include <troika/param/spec.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troika {

// The elements of a whole tensor that a rank holds.
struct ShardDescriptor {
  std::vector<std::int64_t> shape;  // of the whole
  Slice slice;                      // what part of it, along one dimension: a tensor axis
  // Elements [begin, begin + count) of that part, row by row: ZeRO.
  std::int64_t begin = 0;
  std::int64_t count = 0;
  // The number of leading elements that this rank writes to files. Every element of the whole is
  // written by exactly one rank: replicas, overlapping slices and tied copies leave it to another.
  std::int64_t owned = 0;

  // Describes a tensor that a rank holds whole.
  [[nodiscard]] static ShardDescriptor whole(at::IntArrayRef shape, bool owned);
  // Describes a shard of an arena.
  [[nodiscard]] static ShardDescriptor of(const Arena& arena, const LocalShard& shard);
  // Returns whether this rank writes the whole tensor.
  [[nodiscard]] bool owns_all() const;

  bool operator==(const ShardDescriptor&) const = default;
};

// Copy this shard's elements, `part` [count] or its leading ones, to their places in `whole`, and
// back.
void copy_into_whole(const ShardDescriptor& shard, const at::Tensor& part, const at::Tensor& whole);
void copy_from_whole(const ShardDescriptor& shard, const at::Tensor& whole, const at::Tensor& part);

struct StateTensor {
  std::string name;
  ShardDescriptor shard;
  at::Tensor tensor;  // flat, [shard.count]; a view: what is written to it is used
};

// A whole tensor, described alike on every rank.
struct StateSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType type = at::kFloat;
};

class StateDict {
 public:
  using Number = std::variant<std::int64_t, double>;

  // Adds this rank's part of a tensor.
  void add(std::string name, ShardDescriptor shard, at::Tensor tensor);
  // Sets a number, which must be the same on all ranks.
  void set(const std::string& name, Number value) { numbers_[name] = value; }

  [[nodiscard]] std::span<const StateTensor> tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, Number>& numbers() const { return numbers_; }
  // Return a number. Throw DataError where there is none of this name and type.
  [[nodiscard]] std::int64_t integer(const std::string& name) const;
  [[nodiscard]] double number(const std::string& name) const;

 private:
  std::vector<StateTensor> tensors_;
  std::map<std::string, Number> numbers_;
};

}  // namespace troika
