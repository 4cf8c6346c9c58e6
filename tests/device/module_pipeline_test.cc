// Units of one's own on the test device: the gradients of one process of the host, cut into stages,
// recomputed, sharded.
#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/own_module/flows.h"

namespace troika::test {
namespace {

RANK_TEST(DeviceModulePipeline, SkipConnectionsCrossCuts, 1, 2, 4) {
  const ExpectNoDeviceFault no_fault;
  const ForbidDeviceSynchronization forbidden;
  expect_flows_of_one_process(rank, test_device());
}

}  // namespace
}  // namespace troika::test
