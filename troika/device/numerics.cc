#include <ATen/Context.h>
#include <troika/device/numerics.h>

#include <cstdlib>

namespace troika {

void apply(const NumericSettings& settings, at::Device device) {
  if (device.is_cpu()) return;
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(settings.tf32);
  context.setAllowTF32CuDNN(settings.tf32);
  context.setBenchmarkCuDNN(settings.cudnn_benchmark);
  context.setDeterministicCuDNN(settings.deterministic);
  context.setDeterministicAlgorithms(settings.deterministic, /*warn_only=*/false);
  // No operator of ours reads what it has not written: the test device fills new memory with NaN.
  context.setDeterministicFillUninitializedMemory(false);
}

// cuBLAS gives the same bits if the workspaces of its streams are of one size. LibTorch refuses its
// deterministic products without the variable.
void prepare_environment(const NumericSettings& settings) {
  if (settings.deterministic) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

}  // namespace troika
