#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/device/facts.h>
#include <troika/device/out_of_memory.h>
#include <troika/device/plugin.h>

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

// As LibTorch's allocator for CUDA words it.
c10::OutOfMemoryError error_of_cuda() {
  return {{"allocate", "CUDACachingAllocator.cpp", 1},
          "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 "
          "GiB of which 1.50 GiB is free. Of the allocated memory 70.00 GiB is allocated by "
          "PyTorch."};
}

TEST(OutOfMemory, SaysWhereTheMemoryIs) {
  DeviceFacts facts;
  facts.device = "cuda:0";
  facts.total_bytes = std::uint64_t{80} << 30;
  facts.free_bytes = std::uint64_t{3} << 29;
  facts.allocator = {std::uint64_t{70} << 30, std::uint64_t{8} << 30};
  const Error error = out_of_memory(error_of_cuda(), facts);
  EXPECT_STREQ(error.what(),
               "cuda:0 is out of memory: 20.00 GiB were asked for; tensors hold 70.0 GiB, the "
               "allocator keeps 8.0 GiB, 1.5 GiB of 80.0 GiB are free");
  EXPECT_NE(error.hint().find("train.micro_batch_size"), std::string::npos);
  EXPECT_EQ(error.code(), ExitCode::kInternal);
}

TEST(OutOfMemory, LeavesOutWhatIsNotKnown) {
  DeviceFacts facts;
  facts.device = "xpu:1";
  EXPECT_STREQ(out_of_memory(c10::OutOfMemoryError({"f", "f.cc", 1}, "no more"), facts).what(),
               "xpu:1 is out of memory");
  facts.total_bytes = std::uint64_t{2} << 30;
  EXPECT_STREQ(out_of_memory(c10::OutOfMemoryError({"f", "f.cc", 1}, "no more"), facts).what(),
               "xpu:1 is out of memory: 0 B of 2.0 GiB are free");
}

}  // namespace
}  // namespace troika
