#include <ATen/cpu/Utils.h>
#include <dlfcn.h>
#include <troika/ops/cpu/bf16_product.h>

namespace troika::ops::cpu {

Bf16Product* bf16_product() {
  static auto* const kProduct = []() -> Bf16Product* {
    // Without matrix tiles, a product in fp32 is as fast.
    if (!at::cpu::init_amx()) return nullptr;
    void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Bf16Product*>(dlsym(library, "cblas_gemm_bf16bf16f32"));
  }();
  return kProduct;
}

}  // namespace troika::ops::cpu
