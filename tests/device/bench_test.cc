// `troika bench comm` on tensors of the test device: every operation is timed and checked, and the
// report says what has carried it.
#include <gmock/gmock.h>
#include <troika/bench/comm_bench.h>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

CommBenchOptions small_bench(at::Device device) {
  CommBenchOptions options;
  options.operations.clear();
  for (const BenchOperationFacts& each : bench_operations()) {
    options.operations.push_back(each.operation);
  }
  options.sizes = {4, 40'000};
  options.budget = Seconds(0);
  options.device = device;
  return options;
}

RANK_TEST(DeviceBench, MeasuresEveryOperation, 2, 3) {
  const ExpectNoDeviceFault no_fault;
  const ForbidDeviceSynchronization forbidden;
  const Group group = rank.group();
  const at::Device device = test_device(rank.index());
  const DeviceCounters before = device_counters();
  const std::vector<CommTiming> timings = bench_comm(group, small_bench(device));
  EXPECT_GT((device_counters() - before).late_copies, 0);  // what the host carries is staged
  ASSERT_EQ(timings.size(), 2 * bench_operations().size());
  for (const CommTiming& timing : timings) {
    EXPECT_EQ(timing.device, "hpu:" + std::to_string(rank.index()));
    EXPECT_EQ(timing.engine, std::string(group.engine_name()) + ", staged");
    EXPECT_GT(timing.time.count(), 0);
  }
}

RANK_TEST(DeviceBench, LeavesTheHostsFiguresAlone, 2) {
  const Group group = rank.group();
  (void)bench_comm(group, small_bench(test_device()));
  const std::vector<CommTiming> timings = bench_comm(group, small_bench(at::kCPU));
  EXPECT_EQ(timings.front().engine, group.engine_name());
  EXPECT_EQ(timings.front().device, "cpu");
}

}  // namespace
}  // namespace troika::test
