// Automatic casts, by the lists of operators that LibTorch keeps for its accelerators.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace troika::test {
namespace {

at::Tensor refuse(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                  std::int64_t) {
  TORCH_CHECK(
      false,
      "binary_cross_entropy is unsafe in low precision; use binary_cross_entropy_with_logits");
}

}  // namespace
}  // namespace troika::test

namespace at::autocast {  // whose names the lists use
namespace {

#define CAST(...) KERNEL(c10::DeviceType::HPU, __VA_ARGS__)
#define CAST_DOWN(...) CAST(__VA_ARGS__, lower_precision_fp)
#define CAST_UP(...) CAST(__VA_ARGS__, fp32)
#define ASK_FOR_FLOAT(...) CAST(__VA_ARGS__, fp32_set_opt_dtype)
#define ASK_ANOTHER_FOR_FLOAT(...) \
  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(c10::DeviceType::HPU, __VA_ARGS__)
#define CAST_TO_WIDEST(...) CAST(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastHPU, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastHPU, m) {
  AT_FORALL_LOWER_PRECISION_FP(CAST_DOWN)
  AT_FORALL_FP32(CAST_UP)
  AT_FORALL_FP32_SET_OPT_DTYPE(ASK_FOR_FLOAT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(ASK_ANOTHER_FOR_FLOAT)
  AT_FORALL_PROMOTE(CAST_TO_WIDEST)
  m.impl("binary_cross_entropy", &troika::test::refuse);
}

#undef CAST
#undef CAST_DOWN
#undef CAST_UP
#undef ASK_FOR_FLOAT
#undef ASK_ANOTHER_FOR_FLOAT
#undef CAST_TO_WIDEST

}  // namespace
}  // namespace at::autocast
