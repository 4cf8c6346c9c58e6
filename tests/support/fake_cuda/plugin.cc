// In place of the plug-in for CUDA: another version of its interface, if FAKE_CUDA_INTERFACE is
// set.
#include <torch/headeronly/version.h>
#include <troika/device/cuda/plugin.h>

#include <cstdlib>

namespace {

constexpr troika::cuda::CudaPlugin kPlugin{nullptr, nullptr, nullptr};

}  // namespace

extern "C" {

extern const char kFakeCudaStatement[] =
    "troika-cuda-plugin: troika=" TROIKA_VERSION " libtorch=" TORCH_VERSION " cuda=13000";

const troika::cuda::CudaPlugin* troika_cuda_plugin(int version) {
  const bool other = std::getenv("FAKE_CUDA_INTERFACE") != nullptr;
  return version == troika::cuda::kPluginVersion && !other ? &kPlugin : nullptr;
}
}
