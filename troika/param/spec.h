// What a parameter is, independent of who holds it: its global name and shape, how it is cut, how
// it starts, how it is treated by the optimiser. Layers declare specs; the arena, the initialiser,
// the buckets and the files are all driven by them.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/mesh/mesh.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// The initial values of a parameter. Draws are keyed by (seed, global name, global index).
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform, kGiven };
  Kind kind = Kind::kConstant;
  // The constant, the standard deviation, or the half-width.
  double value = 0;
  // The values themselves, of the global shape; undefined unless they are given.
  at::Tensor values = {};

  [[nodiscard]] static Initializer constant(double value) { return {Kind::kConstant, value}; }
  [[nodiscard]] static Initializer normal(double deviation) { return {Kind::kNormal, deviation}; }
  [[nodiscard]] static Initializer uniform(double half_width) {
    return {Kind::kUniform, half_width};
  }
  [[nodiscard]] static Initializer given(at::Tensor values) {
    return {Kind::kGiven, 0, std::move(values)};
  }
};

// The slice of a global tensor that one rank holds: [begin, end) along one dimension.
struct Slice {
  int dim = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

struct ParameterSpec {
  // The global name: the same on every layout, as in the Hugging Face models ("model.norm.weight").
  std::string name;
  // The global shape, unpadded.
  std::vector<std::int64_t> shape;
  Initializer initializer;
  // The slice held here. If absent, all of the tensor (replicated). Cuts may be uneven.
  std::optional<Slice> slice;
  // The axes over which the local gradient is a partial sum, besides the data axis, where it always
  // is. Where `slice` is given as well, neighbours on that axis hold overlapping slices.
  std::vector<Axis> partial_over;
  // The number of leading elements held here that this rank counts in norms and writes to files. If
  // absent, all of them. Exactly one tensor rank counts an element that several hold.
  std::optional<std::int64_t> owned;
  // True for a tied weight whose original a rank of another pipeline stage holds, and counts.
  bool tied_replica = false;
  // True if the working weight is kept in the masters' precision (norms), in runs of any precision.
  bool keep_fp32 = false;
  // The global name of the parameter whose storage this one shares; empty if it has separate
  // storage.
  std::string tied_to;
  // The name under which the layer of a tied replica has it, where there is no pipeline: that of a
  // spec with `tied_to`.
  std::string replica_name;
  // The number of its unit: the granularity of buckets, gathering and recomputation.
  int unit = 0;
  // True if weight decay applies (not to norms and biases).
  bool decays = true;
  // True if it keeps its value. Then that is all that it takes: no gradient, no optimiser state, no
  // part in the gradient norm.
  bool frozen = false;
  // Multiplies the learning rate.
  double lr_factor = 1;
  // Takes the place of the optimiser's weight decay, also where `decays` is false.
  std::optional<double> weight_decay;
  // True if the optimiser needs the whole matrix at once, so that no shard may cut through it.
  bool whole_matrix = false;

  // Returns the shape of the slice held here.
  [[nodiscard]] std::vector<std::int64_t> local_shape() const;
  // Returns the number of elements held here.
  [[nodiscard]] std::int64_t local_count() const;
  // Returns the number of elements of the whole tensor.
  [[nodiscard]] std::int64_t global_count() const;
};

}  // namespace troika
