#include <ATen/ATen.h>
#include <troika/param/joined_tensor.h>

namespace troika {
namespace {

constexpr std::size_t kMatrix = 2;

}  // namespace

at::Tensor join_parts(std::span<const at::Tensor> parts, bool transposed) {
  const at::Tensor joined =
      parts.size() == 1 ? parts.front() : at::cat(at::TensorList(parts.data(), parts.size()), 0);
  return (transposed ? joined.t() : joined).contiguous();
}

bool is_splittable(std::span<const std::int64_t> shape, bool transposed, std::size_t count) {
  if (transposed && shape.size() != kMatrix) return false;
  if (count == 1) return true;
  if (shape.empty()) return false;
  const std::int64_t rows = transposed ? shape.back() : shape.front();
  return rows % static_cast<std::int64_t>(count) == 0;
}

at::Tensor part_of(const at::Tensor& joined, bool transposed, std::size_t part, std::size_t count) {
  const at::Tensor ours = transposed ? joined.t() : joined;
  if (count == 1) return ours.contiguous();
  const std::int64_t rows = ours.size(0) / static_cast<std::int64_t>(count);
  return ours.narrow(0, static_cast<std::int64_t>(part) * rows, rows).contiguous();
}

}  // namespace troika
