// The plug-in as it was built, loaded without a GPU: it states what it was built for, and brings
// kernels under the names and with the signatures of our operators.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/device/plugin_loader.h>
#include <troika/ops/operators.h>

#include <set>
#include <string>

namespace troika {
namespace {

const std::filesystem::path kPlugin = TROIKA_CUDA_PLUGIN;

// Without LibTorch's libraries for GPUs an empty one of that name, which the plug-in is linked to.
bool stands_in_for_libtorch() {
#ifdef TROIKA_NO_TORCH_CUDA
  return dlopen(TROIKA_NO_TORCH_CUDA, RTLD_NOW | RTLD_GLOBAL) != nullptr;
#else
  return true;
#endif
}

std::set<std::string> operators_for(c10::DispatchKey key) {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
    if (name.name.starts_with("troika::")) names.insert(name.name.substr(8));
  }
  return names;
}

// LibTorch compares each kernel's signature with its schema when it has both, and throws.
TEST(CudaPlugin, HasKernelsOfOurOperators) {
  ASSERT_TRUE(stands_in_for_libtorch()) << dlerror();
  ASSERT_NE(dlopen(kPlugin.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  ops::define_operators();
  for (const auto& missing : c10::Dispatcher::singleton().findDanglingImpls()) {
    EXPECT_FALSE(missing.operator_name().name.starts_with("troika::"))
        << missing.operator_name().name << " has a kernel, and is no operator";
  }
  std::set<std::string> composites = operators_for(c10::DispatchKey::CompositeExplicitAutograd);
  for (const std::string& name : operators_for(c10::DispatchKey::CUDA)) {
    EXPECT_EQ(composites.erase(name), 1) << name;
  }
  // What is left to the composite there.
  EXPECT_THAT(composites,
              testing::ElementsAre("batch_norm", "batch_norm_backward",
                                   "cross_entropy_gradient_of_slice_", "cross_entropy_of_slices",
                                   "cross_entropy_slice", "swiglu", "swiglu_backward"));
}

TEST(CudaPlugin, StatesWhatItWasBuiltFor) {
  ASSERT_TRUE(stands_in_for_libtorch());
  const std::filesystem::path driver = TROIKA_FAKE_CUDA;
  const auto loaded =
      detail::load_plugin_from({.plugin = kPlugin, .driver = driver / "libfake_cuda_driver.so"});
  // It fits, and is loaded. What may be missing is what LibTorch has behind it.
  if (at::hasCUDA()) {
    EXPECT_EQ(loaded.facts.reason, "");
    EXPECT_NE(loaded.functions, nullptr);
    EXPECT_THAT(loaded.facts.libraries, testing::StartsWith("CUDA "));
  } else {
    EXPECT_THAT(loaded.facts.reason, testing::HasSubstr("LibTorch was used before its plug-in"));
  }
}

}  // namespace
}  // namespace troika
