// What a parameter is, independent of who holds it: its global name and shape, how it is cut, how
// it starts, how it is treated by the optimiser. Layers declare specs; the arena, the initialiser,
// the buckets and the files are all driven by them.
#pragma once

#include <troika/mesh/mesh.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// How a parameter's values start. Draws are keyed by (seed, global name, global index).
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  // The constant, the standard deviation, or the half-width.
  double value = 0;

  [[nodiscard]] static Initializer constant(double value) { return {Kind::kConstant, value}; }
  [[nodiscard]] static Initializer normal(double deviation) { return {Kind::kNormal, deviation}; }
  [[nodiscard]] static Initializer uniform(double half_width) {
    return {Kind::kUniform, half_width};
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
  // Global: the same on every layout, as in the Hugging Face models ("model.norm.weight").
  std::string name;
  // Global and unpadded.
  std::vector<std::int64_t> shape;
  Initializer initializer;
  // The slice held here; absent: all of it (replicated). Cuts may be uneven.
  std::optional<Slice> slice;
  // Axes over which the local gradient is a partial sum, besides the data axis, where it always is.
  // Where `slice` is given as well, neighbours on that axis hold overlapping slices.
  std::vector<Axis> partial_over;
  // How many of the elements held here, the leading ones, this rank counts in norms and writes to
  // files; absent: all of them. Of what several tensor ranks hold, exactly one counts it.
  std::optional<std::int64_t> owned;
  // The rank of another pipeline stage holds the original (a tied weight), and counts it.
  bool tied_replica = false;
  // The working weight is kept in the masters' precision (norms), whatever the run's is.
  bool keep_fp32 = false;
  // Global name of the parameter whose storage this one shares; empty: its own.
  std::string tied_to;
  // The unit it belongs to: the granularity of buckets, gathering and recomputation.
  int unit = 0;
  // Weight decay applies (not to norms and biases).
  bool decays = true;
  // The optimiser leaves it as it is, and it does not count in the gradient norm.
  bool frozen = false;
  // Multiplies the learning rate.
  double lr_factor = 1;
  // Takes the place of the optimiser's weight decay, also where `decays` is false.
  std::optional<double> weight_decay;
  // The optimiser needs the whole matrix at once, so a shard must not cut through it.
  bool whole_matrix = false;

  // Shape of what is held here.
  [[nodiscard]] std::vector<std::int64_t> local_shape() const;
  // Elements held here.
  [[nodiscard]] std::int64_t local_count() const;
  // Elements of the whole.
  [[nodiscard]] std::int64_t global_count() const;
};

}  // namespace troika
