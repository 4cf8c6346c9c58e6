#include <ATen/ATen.h>
#include <troika/capi/c_calls.h>

#include <limits>

namespace troika {
namespace {

// Checks that a shape has as many bytes as memory can have.
void check_extents(at::IntArrayRef shape, const std::string& name) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max() / 8;
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw UsageError(name + ": a negative number of values");
    if (extent > 0) left /= extent;
  }
  if (left == 0) throw UsageError(name + ": more values than memory can hold");
}

}  // namespace

Failure& last_failure() {
  static thread_local Failure failure;
  return failure;
}

int remember(Failure failure) {
  const int code = static_cast<int>(failure.code);
  last_failure() = std::move(failure);
  return code;
}

at::ScalarType scalar_type(int type) {
  switch (type) {
    case TROIKA_FLOAT:
      return at::kFloat;
    case TROIKA_DOUBLE:
      return at::kDouble;
    case TROIKA_INT32:
      return at::kInt;
    case TROIKA_INT64:
      return at::kLong;
    default:
      throw UsageError("type " + std::to_string(type) +
                       " is none of TROIKA_FLOAT, TROIKA_DOUBLE, TROIKA_INT32, TROIKA_INT64");
  }
}

at::Tensor view_of(const void* values, at::IntArrayRef shape, at::ScalarType type,
                   const std::string& name) {
  check_extents(shape, name);
  for (const std::int64_t extent : shape) {
    if (extent == 0) return at::empty(shape, type);
  }
  (void)need(static_cast<const char*>(values), name);
  return at::from_blob(const_cast<void*>(values), shape, type);  // NOLINT: read only, as above
}

}  // namespace troika
