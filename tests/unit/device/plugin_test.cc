// The plug-in for CUDA is refused, by name and before it is loaded, where it cannot work. A driver
// and a plug-in of the tests' own stand in for the real ones (support/fake_cuda).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <troika/base/version.h>
#include <troika/device/plugin_loader.h>

#include <cstdlib>
#include <fstream>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using detail::load_plugin_from;
using ::testing::HasSubstr;

const std::filesystem::path kFakes = TROIKA_FAKE_CUDA;

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

class CudaPlugin : public testing::Test {
 protected:
  // Loads the fake driver and `plugin`; returns why there are no devices, and the hint.
  static std::string refusal(const std::optional<std::filesystem::path>& plugin) {
    const auto loaded =
        load_plugin_from({.plugin = plugin, .driver = kFakes / "libfake_cuda_driver.so"});
    EXPECT_FALSE(loaded.facts.usable());
    EXPECT_EQ(loaded.functions, nullptr);
    EXPECT_EQ(loaded.facts.type, "cuda");
    EXPECT_NE(loaded.facts.hint, "");
    return loaded.facts.reason + " -> " + loaded.facts.hint;
  }
  // A file that states what it was built for, as a plug-in does.
  std::filesystem::path file_for(const std::string& troika, const std::string& libtorch,
                                 const std::string& cuda) {
    const std::filesystem::path file = folder_.path() / "libtroika_cuda.so";
    std::ofstream(file) << "other bytes" << '\0' << cuda::kStatement << "troika=" << troika
                        << " libtorch=" << libtorch << " cuda=" << cuda << '\0' << "more";
    return file;
  }
  std::string own_version() { return std::string(kVersion); }

  TemporaryFolder folder_;
};

TEST_F(CudaPlugin, NeedsADriver) {
  const auto loaded =
      load_plugin_from({.plugin = kFakes / "libfake_cuda_plugin.so", .driver = "libno_driver.so"});
  EXPECT_EQ(loaded.facts.reason, "NVIDIA's driver (libno_driver.so) is not installed");
}

TEST_F(CudaPlugin, MayBeAbsent) {
  EXPECT_THAT(refusal(std::nullopt),
              HasSubstr("there is no plug-in for CUDA (libtroika_cuda.so) -> it is built where the "
                        "CUDA toolkit is"));
}

TEST_F(CudaPlugin, IsRefusedByTheVersionOfTroika) {
  EXPECT_THAT(refusal(file_for("0.0.1", TORCH_VERSION, "13000")),
              HasSubstr("was built for troika 0.0.1, and this is " + own_version()));
}

TEST_F(CudaPlugin, IsRefusedByTheVersionOfLibTorch) {
  EXPECT_THAT(refusal(file_for(own_version(), "2.5.1", "13000")),
              HasSubstr("was built for LibTorch 2.5.1, and this is " TORCH_VERSION));
}

TEST_F(CudaPlugin, IsRefusedIfItStatesNothing) {
  const std::filesystem::path file = folder_.path() / "libtroika_cuda.so";
  std::ofstream(file) << "no plug-in";
  EXPECT_THAT(refusal(file), HasSubstr("is no plug-in of troika"));
}

TEST_F(CudaPlugin, NamesBothVersionsWhereTheDriverIsTooOld) {
  const ScopedVariable old("FAKE_CUDA_VERSION", "12040");
  EXPECT_THAT(refusal(file_for(own_version(), TORCH_VERSION, "13010")),
              HasSubstr("NVIDIA's driver supports CUDA 12.4, and LibTorch's libraries are of CUDA "
                        "13.1 -> update the driver, or build with a LibTorch for CUDA 12"));
}

TEST_F(CudaPlugin, NamesAGpuThatItHasNoKernelsFor) {
  const ScopedVariable old("FAKE_CUDA_CAPABILITY", "75");
  EXPECT_THAT(refusal(file_for(own_version(), TORCH_VERSION, "13000 oldest=80")),
              HasSubstr("the plug-in has no kernels for GPU 1: its compute capability is 7.5, and "
                        "they begin at 8.0 -> configure with -DCMAKE_CUDA_ARCHITECTURES=75"));
  const auto loaded =
      load_plugin_from({.plugin = file_for(own_version(), TORCH_VERSION, "13000 oldest=80"),
                        .driver = kFakes / "libfake_cuda_driver.so"});
  EXPECT_THAT(detail::reason_for_cpu({0, 1}, loaded.facts, 2),
              HasSubstr("takes the CPU: the plug-in has no kernels for GPU 1"));
}

TEST_F(CudaPlugin, SaysThatThereIsNoGpu) {
  const ScopedVariable none("FAKE_CUDA_INIT", "100");
  EXPECT_THAT(refusal(kFakes / "libfake_cuda_plugin.so"), HasSubstr("shows no GPU -> "));
  const ScopedVariable hidden("CUDA_VISIBLE_DEVICES", "");
  EXPECT_THAT(refusal(kFakes / "libfake_cuda_plugin.so"),
              HasSubstr("shows no GPU; CUDA_VISIBLE_DEVICES is ''"));
}

TEST_F(CudaPlugin, SaysThatTheDriverDoesNotWork) {
  const ScopedVariable broken("FAKE_CUDA_INIT", "803");
  EXPECT_THAT(refusal(kFakes / "libfake_cuda_plugin.so"),
              HasSubstr("NVIDIA's driver does not work: cuInit says 803"));
}

TEST_F(CudaPlugin, SaysWhyItCannotBeLoaded) {
  EXPECT_THAT(refusal(file_for(own_version(), TORCH_VERSION, "13000")),
              testing::AllOf(HasSubstr("cannot load "), HasSubstr("TROIKA_CUDA=1 make build")));
}

TEST_F(CudaPlugin, IsRefusedByItsInterface) {
  const ScopedVariable other("FAKE_CUDA_INTERFACE", "2");
  EXPECT_THAT(refusal(kFakes / "libfake_cuda_plugin.so"),
              HasSubstr("belongs to another version of troika"));
}

// Everything fits, but no library of LibTorch's has brought devices.
TEST_F(CudaPlugin, ComesBeforeLibTorchIsUsed) {
  if (load_device_plugin().usable()) GTEST_SKIP() << "this machine has GPUs: they are there";
  EXPECT_THAT(refusal(kFakes / "libfake_cuda_plugin.so"),
              HasSubstr("LibTorch was used before its plug-in for CUDA was loaded"));
}

TEST_F(CudaPlugin, IsLookedForOnce) {
  EXPECT_EQ(&load_device_plugin(), &load_device_plugin());
  EXPECT_EQ(load_device_plugin().usable(), load_device_plugin().reason.empty());
}

}  // namespace
}  // namespace troika
