#include <gtest/gtest.h>
#include <sys/mman.h>
#include <troika/observe/resources.h>

#include <cstring>

namespace troika {
namespace {

TEST(ResourceUse, SeesMemoryComeAndGo) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const ResourceUse before = resource_use();
  void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  const ResourceUse held = resource_use();
  ::munmap(block, kBytes);
  const ResourceUse after = resource_use();

  constexpr std::size_t kMost = kBytes * 9 / 10;  // the kernel counts in batches
  EXPECT_GT(held.memory_bytes, before.memory_bytes + kMost);
  EXPECT_LT(after.memory_bytes, held.memory_bytes - kMost);
  EXPECT_GE(held.peak_memory_bytes + kBytes / 10, held.memory_bytes);
  EXPECT_GE(after.peak_memory_bytes + kBytes / 10, held.memory_bytes);
  EXPECT_GT(held.minor_faults, before.minor_faults);
}

TEST(ResourceUse, CountsProcessorTime) {
  const ResourceUse before = resource_use();
  ResourceUse after = before;
  volatile double sink = 1;
  const Deadline deadline = Deadline::in(Seconds(30));
  while (after.cpu_seconds - before.cpu_seconds < 0.05 && !deadline.passed()) {
    for (int i = 0; i < 100000; ++i) sink = sink * 1.0000001;
    after = resource_use();
  }
  EXPECT_GE(after.cpu_seconds - before.cpu_seconds, 0.05);
  EXPECT_GT(cpu_utilisation(before, after, 1), 0.0);
}

TEST(CpuUtilisation, IsTheShareOfAllCores) {
  ResourceUse before, after;
  before.cpu_seconds = 1;
  after.cpu_seconds = 4;
  EXPECT_EQ(cpu_utilisation(before, after, 2), 0.0);  // no time has passed
  after.at = before.at + std::chrono::seconds(2);
  EXPECT_DOUBLE_EQ(cpu_utilisation(before, after, 2), 0.75);
}

}  // namespace
}  // namespace troika
