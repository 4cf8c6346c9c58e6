// The casts of autocast on the test device, operator by operator as LibTorch's lists have them for
// its own devices. It registers none for HPU.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace troika::test {
namespace {

TORCH_LIBRARY_IMPL(_, AutocastHPU, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// The macros are LibTorch's: they register in a library called `m`.
#define TROIKA_LOWER_PRECISION(...) KERNEL(c10::DeviceType::HPU, __VA_ARGS__, lower_precision_fp)
#define TROIKA_FP32(...) KERNEL(c10::DeviceType::HPU, __VA_ARGS__, fp32)
#define TROIKA_PROMOTE(...) KERNEL(c10::DeviceType::HPU, __VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastHPU, m) {
  AT_FORALL_LOWER_PRECISION_FP(TROIKA_LOWER_PRECISION)
  AT_FORALL_FP32(TROIKA_FP32)
  AT_FORALL_PROMOTE(TROIKA_PROMOTE)
}

#undef TROIKA_LOWER_PRECISION
#undef TROIKA_FP32
#undef TROIKA_PROMOTE

}  // namespace
}  // namespace troika::test
