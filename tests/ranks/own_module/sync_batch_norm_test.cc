// SyncBatchNorm with the batches of several ranks is torch::nn::BatchNorm with all of them.
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include "ranks/own_module/own_module.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

using SingleProcessNet = NormedNetImpl<torch::nn::BatchNorm2d>;
using SyncedNet = NormedNetImpl<SyncBatchNorm>;

// Rank r has r + 1 samples of `all`.
Samples uneven_part(const Samples& all, int rank) {
  return all.slice(rank * (rank + 1) / 2, rank + 1);
}

RANK_TEST(SyncBatchNorm, WeighedIsOneBatch, 1, 2, 3) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<SyncedNet>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<SingleProcessNet>(torch::nn::BatchNorm2d(4));
  DataParallel model(together, session, small_buckets());
  torch::optim::SGD optimizer(together->parameters(), 0.1), reference(alone->parameters(), 0.1);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples all(rank.size() * (rank.size() + 1) / 2 + (rank.size() == 1 ? 1 : 0), step,
                      {2, 5, 5});
    const Samples own = rank.size() == 1 ? all : uneven_part(all, rank.index());
    optimizer.zero_grad();
    reference.zero_grad();
    model.weigh(static_cast<double>(own.x.size(0)));
    squared_error(model(own.x), own.y).backward();
    squared_error(alone->forward(all.x), all.y).backward();
    expect_same_gradients(*together, *alone);
    optimizer.step();
    reference.step();
  }
  expect_same_values(*together, *alone);  // and the running statistics
  together->eval();
  alone->eval();
  const Samples test(3, 9, {2, 5, 5});
  EXPECT_LE(largest(together->forward(test.x) - alone->forward(test.x)), 1e-12);
}

// Without weights: the mean of the ranks' mean losses, whatever their sizes.
RANK_TEST(SyncBatchNorm, UnweighedIsTheMeanOfLosses, 2, 3) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<SyncedNet>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<SingleProcessNet>(torch::nn::BatchNorm2d(4));
  DataParallel model(together, session);
  const Samples all(rank.size() * (rank.size() + 1) / 2, 0, {2, 5, 5});
  const Samples own = uneven_part(all, rank.index());
  squared_error(model(own.x), own.y).backward();
  const torch::Tensor outputs = alone->forward(all.x);
  torch::Tensor loss = torch::zeros({}, torch::kDouble);
  for (int other = 0; other < rank.size(); ++other) {
    const Samples theirs = uneven_part({outputs, all.y}, other);
    loss = loss + squared_error(theirs.x, theirs.y) / rank.size();
  }
  loss.backward();
  expect_same_gradients(*together, *alone);
}

RANK_TEST(SyncBatchNorm, OtherShapesAndOptions, 2) {
  const Session session = session_of(rank);
  const auto options =
      torch::nn::BatchNormOptions(6).affine(false).momentum(std::nullopt).eps(1e-3);
  SyncBatchNorm together(options, session);
  torch::nn::BatchNorm1d alone(options);
  together->to(torch::kDouble);
  alone->to(torch::kDouble);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const Samples all(6, step);
    const torch::Tensor own = together(all.slice(rank).x);
    const torch::Tensor wanted = alone(all.x).narrow(0, 3 * rank.index(), 3);
    EXPECT_LE(largest(own - wanted), 1e-12);
  }
  EXPECT_LE(largest(together->running_var - alone->running_var), 1e-12);
  EXPECT_LE(largest(together->running_mean - alone->running_mean), 1e-12);
  EXPECT_THAT(usage_error_of([&] {
                (void)together(torch::ones({3, 5}));
              }),
              testing::HasSubstr("of 6 channels is given [3, 5]"));
}

RANK_TEST(SyncBatchNorm, ARankWithoutSamples, 2) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<SyncedNet>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<SingleProcessNet>(torch::nn::BatchNorm2d(4));
  DataParallel model(together, session);
  const Samples all(4, 0, {2, 5, 5}), own = rank.index() == 0 ? all : all.slice(0, 0);
  model.weigh(static_cast<double>(own.x.size(0)));
  squared_error(model(own.x), own.y).backward();
  squared_error(alone->forward(all.x), all.y).backward();
  expect_same_gradients(*together, *alone);
}

RANK_TEST(SyncBatchNorm, RefusesToJoin, 2) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<SyncedNet>(SyncBatchNorm(4, session));
  DataParallel model(together, session);
  EXPECT_THAT(usage_error_of([&] { model.join(); }), testing::HasSubstr("join() in a module with"));
}

RANK_TEST(SyncBatchNorm, RefusesOtherNormsOnOtherRanks, 2) {
  const Session session = session_of(rank);
  const auto two = [&](auto make_norm) {
    return torch::nn::Sequential(SyncBatchNorm(4, session), make_norm());
  };
  const auto net = rank.index() == 0 ? two([&] { return SyncBatchNorm(4, session); })
                                     : two([] { return torch::nn::BatchNorm1d(4); });
  EXPECT_THAT(usage_error_of([&] { const DataParallel model(net, session); }),
              testing::HasSubstr("some have more SyncBatchNorm than others"));
}

// What may be left out comes after the norm: its gradients are ready before the norm's backward
// pass, on the ranks that have used it.
template <class Norm>
struct BranchingImpl : torch::nn::Module {
  explicit BranchingImpl(Norm the_norm) {
    torch::manual_seed(1);
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    norm = register_module("norm", std::move(the_norm));
    fc = register_module("fc", torch::nn::Linear(4, 3));
    branch = register_module("branch", torch::nn::Linear(3, 3));
    to(torch::kDouble);
  }
  torch::Tensor features(const torch::Tensor& x) { return torch::tanh(norm(conv(x))).mean({2, 3}); }
  torch::Tensor head(const torch::Tensor& features, bool uses_branch) {
    const torch::Tensor y = fc(features);
    return uses_branch ? branch(torch::tanh(y)) : y;
  }
  torch::Tensor forward(const torch::Tensor& x, bool uses_branch) {
    return head(features(x), uses_branch);
  }
  torch::nn::Conv2d conv{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear fc{nullptr}, branch{nullptr};
};
using BranchingSyncedNet = BranchingImpl<SyncBatchNorm>;

class AveragingHook final : public BucketHook {
 public:
  Work start(const GradientBucket& bucket) override {
    return bucket.group->all_reduce(bucket.gradients, ReduceOp::kAverage, bucket.call);
  }
  void finish(const GradientBucket& bucket) override {}
};

// The same in one process, where rank r uses the branch if `uses_branch(r)`.
class SingleProcessBranchingNet {
 public:
  explicit SingleProcessBranchingNet(const Rank& rank) : ranks_(rank.size()) {}
  template <class UsesBranch>
  void backward(const Samples& all, const UsesBranch& uses_branch) {
    const torch::Tensor features = net->features(all.x);
    const std::int64_t count = all.x.size(0) / ranks_;
    torch::Tensor loss = torch::zeros({}, torch::kDouble);
    for (int r = 0; r < ranks_; ++r) {
      const torch::Tensor output = net->head(features.narrow(0, r * count, count), uses_branch(r));
      loss = loss + squared_error(output, all.y.narrow(0, r * count, count)) / ranks_;
    }
    loss.backward();
  }
  std::shared_ptr<BranchingImpl<torch::nn::BatchNorm2d>> net =
      std::make_shared<BranchingImpl<torch::nn::BatchNorm2d>>(torch::nn::BatchNorm2d(4));

 private:
  int ranks_;
};

DataParallelOptions bucket_for_each(bool hooked) {
  DataParallelOptions options;
  options.buckets = {.first_bytes = 1, .bytes = 1};
  if (hooked) options.hook = std::make_shared<AveragingHook>();
  return options;
}

void expect_unused_allowed(Rank& rank, const Session& session, DataParallelOptions options) {
  options.unused = DataParallelOptions::Unused::kAllow;
  const auto together = std::make_shared<BranchingSyncedNet>(SyncBatchNorm(4, session));
  SingleProcessBranchingNet alone(rank);
  DataParallel model(together, session, options);
  ASSERT_GE(model.buckets(), 4);
  for (std::uint64_t step = 0; step < 4; ++step) {
    together->zero_grad();
    alone.net->zero_grad();
    const auto uses_branch = [&](int r) { return step == 2 || r == 0; };
    const Samples all(6, step, {2, 5, 5}), own = all.slice(rank);
    squared_error(model(own.x, uses_branch(rank.index())), own.y).backward();
    alone.backward(all, uses_branch);
    expect_same_gradients(*together, *alone.net);
  }
}

void expect_unused_refused(Rank& rank, const Session& session, const DataParallelOptions& options) {
  const auto together = std::make_shared<BranchingSyncedNet>(SyncBatchNorm(4, session));
  SingleProcessBranchingNet alone(rank);
  DataParallel model(together, session, options);
  const Samples all(6, 0, {2, 5, 5}), own = all.slice(rank);
  for (int step = 0; step < 2; ++step) {
    together->zero_grad();
    alone.net->zero_grad();
    EXPECT_THAT(
        usage_error_of([&] { squared_error(model(own.x, rank.index() == 0), own.y).backward(); }),
        testing::HasSubstr("'branch.weight', 'branch.bias' got no gradient"));
    together->zero_grad();
    squared_error(model(own.x, true), own.y).backward();  // and goes on
    alone.backward(all, [](int) { return true; });
    expect_same_gradients(*together, *alone.net);
  }
}

// On a group, the norms' operations are between those of the buckets.
RANK_TEST(SyncBatchNorm, UnusedParametersAfterItInASessionOnAGroup, 2) {
  for (const bool hooked : {false, true}) {
    expect_unused_allowed(rank, session_of(rank), bucket_for_each(hooked));
    expect_unused_refused(rank, session_of(rank), bucket_for_each(hooked));
  }
}

Session joined(Rank& rank) {
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.timeout = Seconds(30);
  return Session::join(world_of(rank), options);
}

RANK_TEST(SyncBatchNorm, UnusedParametersAfterIt, 2) {
  const Session session = joined(rank);
  for (const bool hooked : {false, true}) {
    expect_unused_allowed(rank, session, bucket_for_each(hooked));
    expect_unused_refused(rank, session, bucket_for_each(hooked));
  }
  session.leave();
}

RANK_TEST(SyncBatchNorm, BucketsSetOutBeforeItsBackwardPass, 2) {
  const Session session = joined(rank);
  const auto together = std::make_shared<BranchingSyncedNet>(SyncBatchNorm(4, session));
  DataParallel model(together, session, bucket_for_each(false));
  const Samples own = Samples(6, 0, {2, 5, 5}).slice(rank);
  const torch::Tensor features = together->features(own.x);
  const std::uint64_t before = session.world().input_bytes();
  std::uint64_t sent = 0;
  features.register_hook([&](const torch::Tensor&) { sent = session.world().input_bytes(); });
  squared_error(together->head(features, true), own.y).backward();
  EXPECT_GT(sent, before);
  session.leave();
}

// At stage 2 buckets acquire buffers, and release them when they have been reduced.
RANK_TEST(SyncBatchNorm, UnusedParametersAfterItAtZero2, 2) {
  const Session session = joined(rank);
  DataParallelOptions options = bucket_for_each(false);
  options.unused = DataParallelOptions::Unused::kAllow;
  options.zero_stage = 2;
  const auto together = std::make_shared<BranchingSyncedNet>(SyncBatchNorm(4, session));
  SingleProcessBranchingNet alone(rank);
  DataParallel model(together, session, options);
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  torch::optim::SGD reference(alone.net->parameters(), 0.1);
  for (std::uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    const auto uses_branch = [&](int r) { return step == 1 || r == 0; };
    const Samples all(6, step, {2, 5, 5}), own = all.slice(rank);
    squared_error(model(own.x, uses_branch(rank.index())), own.y).backward();
    alone.backward(all, uses_branch);
    optimizer.step();
    reference.step();
  }
  expect_same_values(*together, *alone.net);
  session.leave();
}

}  // namespace
}  // namespace troika::test
