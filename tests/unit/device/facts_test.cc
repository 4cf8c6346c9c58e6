#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/device/facts.h>
#include <troika/device/plugin_loader.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace troika {
namespace {

TEST(DeviceFacts, AreKnownOfTheHost) {
  const DeviceFacts facts = facts_of(at::kCPU);
  EXPECT_EQ(facts.device, "cpu");
  EXPECT_GT(facts.total_bytes, 0);
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_FALSE(facts.allocator.has_value());
}

TEST(DeviceFacts, ListTheHostFirst) {
  const std::vector<DeviceFacts> all = list_devices();
  ASSERT_EQ(all.size(), 1U + static_cast<std::size_t>(load_device_plugin().devices));
  EXPECT_EQ(all.front().device, "cpu");
}

// Devices 0, 1 and 2 of a plug-in: Turing, Ampere, and one that does not say.
TEST(DeviceFacts, KnowWhoMultipliesBf16) {
  const cuda::CudaPlugin plugin{nullptr,
                                [](int index, int* major, int* minor) {
                                  *major = index == 0 ? 7 : 8;
                                  *minor = index == 0 ? 5 : 0;
                                  return index < 2 ? nullptr : "invalid device ordinal";
                                },
                                nullptr};
  EXPECT_FALSE(detail::multiplies_bf16(plugin, 0));
  EXPECT_TRUE(detail::multiplies_bf16(plugin, 1));
  EXPECT_FALSE(detail::multiplies_bf16(plugin, 2));
}

TEST(DeviceFacts, NameTheNearestCores) {
  const TemporaryFolder root;
  const std::filesystem::path slot = root.path() / "sys/bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(slot);
  std::ofstream(slot / "numa_node") << "1\n";
  std::ofstream(slot / "local_cpulist") << "16-31,48-63\n";
  DeviceFacts facts;
  facts.pci_bus_id = "0000:1B:00.0";  // as CUDA writes it
  add_location(facts, root.path());
  EXPECT_EQ(facts.numa_node, 1);
  EXPECT_EQ(facts.nearest_cores, "16-31,48-63");

  std::ofstream(slot / "numa_node") << "-1\n";
  DeviceFacts without;
  without.pci_bus_id = "0000:1b:00.0";
  add_location(without, root.path());
  EXPECT_FALSE(without.numa_node.has_value());
  DeviceFacts elsewhere;
  elsewhere.pci_bus_id = "0000:2b:00.0";
  add_location(elsewhere, root.path());
  EXPECT_EQ(elsewhere.nearest_cores, "");
}

}  // namespace
}  // namespace troika
