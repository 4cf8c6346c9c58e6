#include <troika/param/spec.h>

namespace troika {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace

std::vector<std::int64_t> ParameterSpec::local_shape() const {
  std::vector<std::int64_t> local = shape;
  if (slice) local[static_cast<std::size_t>(slice->dim)] = slice->end - slice->begin;
  return local;
}

std::int64_t ParameterSpec::local_count() const {
  return product(local_shape());
}

std::int64_t ParameterSpec::global_count() const {
  return product(shape);
}

}  // namespace troika
