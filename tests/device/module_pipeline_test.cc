// Units of one's own on a device: the gradients of one process of the host, cut into stages,
// recomputed, sharded.
#include <gmock/gmock.h>
#include <troika/base/error.h>

#include "device/under_test.h"
#include "ranks/own_module/flows.h"

namespace troika::test {
namespace {

RANK_TEST(DeviceModulePipeline, SkipConnectionsCrossCuts, 1, 2, 4) {
  const DeviceWatch watch;
  expect_flows_of_one_process(rank, device_under_test());
}

RANK_TEST(DeviceModulePipeline, RefusesAUnitOnADevice, 1) {
  const DeviceWatch watch;
  std::vector<NamedUnit> units = small_net();
  const auto on_another = [] {
    torch::nn::Sequential net = dense(9, 7, 13);
    net->to(device_under_test(2));
    return net;
  };
  units[2] = unit("third", on_another, {7});
  ModulePipelineOptions options;
  options.type = at::kDouble;
  options.device = device_under_test();
  try {
    ModulePipeline model(units, loss_sum, groups_over(rank, 1), options);
    ADD_FAILURE() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()), "parameter 'third.1.weight' is on " +
                                             device_under_test(2).str() + ", not the host's");
    EXPECT_THAT(error.hint(), testing::HasSubstr("ModulePipelineOptions::device moves them"));
  }
}

}  // namespace
}  // namespace troika::test
