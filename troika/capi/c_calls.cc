#include <ATen/ATen.h>
#include <troika/capi/c_calls.h>

#include <limits>
#include <string_view>
#include <utility>

namespace troika {
namespace {

// Where a setting has other names in recipes and in C++: what programs in C call it.
constexpr std::pair<std::string_view, std::string_view> kNamesInC[] = {
    {"comm.timeout_seconds, SessionOptions::timeout, `troika launch --timeout`",
     "troika_options.timeout_seconds"},
    {"comm.engine, SessionOptions::engine", "troika_options.engine"},
    {"comm.engine = \"auto\" (SessionOptions::engine)", "troika_options.engine = \"auto\""},
    {"SessionOptions::recorders", "troika_options.recorders"},
    {"SessionOptions::timeout", "troika_options.timeout_seconds"},
    {"SessionOptions::rendezvous_timeout", "troika_options.rendezvous_timeout_seconds"},
    {" (SessionOptions, troika_options)", " (troika_options)"},
    {"session.engine", "troika_options.engine"},
};

std::string with_names_in_c(std::string text) {
  for (const auto& [name, in_c] : kNamesInC) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
      text.replace(at, name.size(), in_c);
    }
  }
  return text;
}

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
  failure.message = with_names_in_c(std::move(failure.message));
  failure.hint = with_names_in_c(std::move(failure.hint));
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
