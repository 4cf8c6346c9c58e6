#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/vectorize.h>
#include <troika/optim/publish.h>

namespace troika {
namespace {

template <typename V, typename T>
void round_to(const Parameter& parameter, std::int64_t begin, std::int64_t count) {
  const T* __restrict from = parameter.master().const_data_ptr<T>() + begin;
  V* __restrict to = parameter.value().mutable_data_ptr<V>() + begin;
  vectorized([=] {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<V>(static_cast<float>(from[i]));
  });
}

}  // namespace

template <typename T>
void publish_chunk(const Parameter& parameter, std::int64_t begin, std::int64_t count) {
  if (parameter.value().const_data_ptr() == parameter.master().const_data_ptr()) return;
  switch (parameter.value().scalar_type()) {
    case at::kBFloat16:
      return round_to<at::BFloat16, T>(parameter, begin, count);
    case at::kHalf:
      return round_to<at::Half, T>(parameter, begin, count);
    default:
      throw InternalError("internal error: '" + parameter.spec().name +
                          "' has working copies that are neither bf16 nor fp16");
  }
}

template void publish_chunk<float>(const Parameter&, std::int64_t, std::int64_t);
template void publish_chunk<double>(const Parameter&, std::int64_t, std::int64_t);

}  // namespace troika
