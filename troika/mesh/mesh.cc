#include <troika/base/error.h>
#include <troika/mesh/mesh.h>

namespace troika {

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, kAxes.size()> kNames = {
      "island", "pipeline", "data", "context", "tensor"};
  return kNames[static_cast<std::size_t>(axis)];
}

std::vector<Axis> axes_of(const Mesh& mesh) {
  std::vector<Axis> axes(kAxes.begin(), kAxes.end());
  if (mesh.size(Axis::kIsland) == 1) std::erase(axes, Axis::kIsland);
  return axes;
}

Mesh::Mesh(const Coordinates& sizes) : sizes_(sizes) {
  for (const Axis axis : kAxes) {
    if (size(axis) < 1) {
      throw UsageError("axis '" + std::string(name_of(axis)) + "' has size " +
                       std::to_string(size(axis)) + "; the smallest is 1");
    }
  }
}

int Mesh::size() const {
  int product = 1;
  for (const int size : sizes_) product *= size;
  return product;
}

Coordinates Mesh::coordinates(int rank) const {
  if (rank < 0 || rank >= size()) {
    throw UsageError("rank " + std::to_string(rank) + " is not in a mesh of " +
                     std::to_string(size()) + " ranks");
  }
  Coordinates result{};
  for (std::size_t i = kAxes.size(); i-- > 0;) {
    result[i] = rank % sizes_[i];
    rank /= sizes_[i];
  }
  return result;
}

int Mesh::coordinate(int rank, Axis axis) const {
  return coordinates(rank)[static_cast<std::size_t>(axis)];
}

int Mesh::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (std::size_t i = 0; i < kAxes.size(); ++i) rank = rank * sizes_[i] + coordinates[i];
  return rank;
}

std::vector<int> Mesh::ranks_along(int rank, Axis axis) const {
  Coordinates position = coordinates(rank);
  std::vector<int> ranks;
  for (int i = 0; i < size(axis); ++i) {
    position[static_cast<std::size_t>(axis)] = i;
    ranks.push_back(this->rank(position));
  }
  return ranks;
}

std::string Mesh::describe() const {
  std::string text;
  for (const Axis axis : axes_of(*this)) {
    if (!text.empty()) text += " x ";
    text += std::string(name_of(axis)) + " " + std::to_string(size(axis));
  }
  return text;
}

}  // namespace troika
