// The first GPU as the device under test. Without a GPU every test of the program is skipped.
#include "device/under_test.h"

#include <gtest/gtest.h>
#include <troika/device/plugin.h>

#include <stdexcept>

namespace troika::test {
namespace {

// Asked in the test program, not in its ranks, which are other processes.
class NeedsGpu : public testing::Environment {
  void SetUp() override {
    const DevicePlugin& plugin = load_device_plugin();
    if (!plugin.usable()) GTEST_SKIP() << "no GPU: " << plugin.reason;
  }
};

[[maybe_unused]] const auto* const kNeedsGpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

struct DeviceWatch::State {};

c10::Device device_under_test(int) {
  return {c10::kCUDA, 0};
}

DeviceWatch::DeviceWatch() {
  const DevicePlugin& plugin = load_device_plugin();
  if (!plugin.usable()) throw std::runtime_error("no GPU: " + plugin.reason);
}

DeviceWatch::~DeviceWatch() = default;

}  // namespace troika::test
