#include <troika/comm/hierarchical/arithmetic.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace troika::detail {
namespace {

template <class To, class From>
void convert(void* to, const void* from, std::int64_t count) {
  To* out = static_cast<To*>(to);
  const From* in = static_cast<const From*>(from);
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<To>(static_cast<float>(in[i]));
}

template <class T>
void divide_typed(void* data, std::int64_t count, int divisor) {
  T* values = static_cast<T*>(data);
  for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] / static_cast<T>(divisor);
}

}  // namespace

bool is_narrow(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

void widen(const at::Tensor& to, const at::Tensor& from) {
  const auto convert_to_float =
      from.scalar_type() == at::kHalf ? convert<float, c10::Half> : convert<float, c10::BFloat16>;
  convert_to_float(to.data_ptr(), from.data_ptr(), from.numel());
}

void narrow(const at::Tensor& to, const at::Tensor& from) {
  const auto convert_from_float =
      to.scalar_type() == at::kHalf ? convert<c10::Half, float> : convert<c10::BFloat16, float>;
  convert_from_float(to.data_ptr(), from.data_ptr(), from.numel());
}

void divide(const at::Tensor& tensor, int divisor) {
  const auto divide_all =
      tensor.scalar_type() == at::kDouble ? divide_typed<double> : divide_typed<float>;
  divide_all(tensor.data_ptr(), tensor.numel(), divisor);
}

}  // namespace troika::detail
