// Adapters beside layers of an own module: DataParallel reduces the pairs alone, and gives the
// training of one process that has all batches.
#include <troika/nn/module_lora.h>

#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

RANK_TEST(OwnModuleAdapters, TrainAsOneProcess, 2, 3) {
  Mlp module, alone;
  const LoraOptions options{.rank = 2, .alpha = 8};
  const ModuleLora lora(*module, options, 5), reference(*alone, options, 5);
  DataParallel model(module, session_of(rank), {});
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer(lora.parameters(), sgd), other(reference.parameters(), sgd);
  const at::Tensor before = module->parameters()[0].clone();
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Samples all(12, step, {6}), own = all.slice(rank);
    optimizer.zero_grad();
    other.zero_grad();
    const auto applied = lora.apply(), applied_alone = reference.apply();
    squared_error(model(own.x), own.y).backward();
    squared_error(alone->forward(all.x), all.y).backward();
    for (std::size_t i = 0; i < lora.parameters().size(); ++i) {
      const at::Tensor expected = reference.parameters()[i].grad();
      EXPECT_TRUE(lora.parameters()[i].grad().allclose(expected, 1e-11, 1e-13)) << step << " " << i;
    }
    optimizer.step();
    other.step();
  }
  EXPECT_TRUE(module->parameters()[0].equal(before));
  EXPECT_GT(lora.parameters()[1].abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace troika::test
