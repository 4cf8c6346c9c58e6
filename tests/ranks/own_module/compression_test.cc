// Modules of users with a compressor for their hook.
#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

// Compression that leaves nothing out is an average, also once buckets have been cut anew.
RANK_TEST(OwnModuleCompression, OfEverythingIsTheAverage, 2) {
  const PowerSgd full{.rank = 64, .small = PowerSgd::Small::kFactorised};
  for (const auto& hook : {keep_top_k(1), keep_random_k(1), compress_by_power_sgd(full)}) {
    Mlp module, alone;
    DataParallelOptions options = small_buckets();
    options.hook = hook;
    DataParallel model(module, session_of(rank), options);
    for (int step = 0; step < 3; ++step) {
      module->zero_grad();
      alone->zero_grad();
      backward(model);
      backward(*alone);
      expect_same_gradients(*module, *alone);
    }
  }
}

}  // namespace
}  // namespace troika::test
