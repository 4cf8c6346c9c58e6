// Units that take and give several tensors have the gradients of one process (flows.h).
#include "ranks/own_module/flows.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

RANK_TEST(ModuleFlows, SkipConnectionsCrossCuts, 1, 2, 4) {
  expect_flows_of_one_process(rank, at::kCPU);
}

RANK_TEST(ModuleFlows, NamesWhatNobodyGives, 1) {
  const PipelineGroups groups = groups_over(rank, 1);
  ModulePipeline model(skipping_net(), weighted, groups, doubles_in("1f1b", 1));
  TensorMap batch = batch_of(4);
  const TensorMap without = {{"x", batch.at("x")}, {"y", batch.at("y")}};
  EXPECT_THAT(usage_error_of([&] { model.train(without); }),
              HasSubstr("unit 'up' takes 'times', which no unit before it gives"));
}

}  // namespace
}  // namespace troika::test
