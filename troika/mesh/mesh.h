// The mesh: ranks laid out on named axes. Pure arithmetic, no tensors and no communication, so that
// planner, simulator and tests use the same code as a run.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The axes from outer to inner: ranks that differ only in `tensor` are neighbours.
// An island is a mesh of its own, whose replicas may differ from those of other islands.
enum class Axis { kIsland, kPipeline, kData, kContext, kTensor };
inline constexpr std::array kAxes = {Axis::kIsland, Axis::kPipeline, Axis::kData, Axis::kContext,
                                     Axis::kTensor};

// Returns "island", "pipeline", "data", "context", "tensor": as in the recipe.
[[nodiscard]] std::string_view name_of(Axis axis);

class Mesh;
// Returns the axes of a mesh for reports: that of islands only where there are several.
[[nodiscard]] std::vector<Axis> axes_of(const Mesh& mesh);

// A position on every axis, indexed like kAxes.
using Coordinates = std::array<int, kAxes.size()>;

class Mesh {
 public:
  // Makes a mesh of one rank.
  Mesh() = default;
  // Takes sizes indexed like kAxes, each at least 1. Throws UsageError naming the axis otherwise.
  explicit Mesh(const Coordinates& sizes);

  [[nodiscard]] int size() const;
  [[nodiscard]] int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  // Throws UsageError if `rank` is not in [0, size()).
  [[nodiscard]] Coordinates coordinates(int rank) const;
  [[nodiscard]] int coordinate(int rank, Axis axis) const;
  [[nodiscard]] int rank(const Coordinates& coordinates) const;
  // Returns the ranks that differ from `rank` only along `axis`, in order of their coordinate.
  [[nodiscard]] std::vector<int> ranks_along(int rank, Axis axis) const;
  // Returns "pipeline 1 x data 2 x context 1 x tensor 1", behind "island 2 x" if there are several.
  [[nodiscard]] std::string describe() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  Coordinates sizes_ = {1, 1, 1, 1, 1};
};

}  // namespace troika
