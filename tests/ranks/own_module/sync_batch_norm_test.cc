// SyncBatchNorm with the batches of several ranks is torch::nn::BatchNorm with all of them.
#include <troika/parallel/data/sync_batch_norm.h>

#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

// A convolution, a norm of either kind, and what comes after it.
template <class Norm>
struct NetImpl : torch::nn::Module {
  explicit NetImpl(Norm the_norm) {
    torch::manual_seed(1);
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    norm = register_module("norm", std::move(the_norm));
    fc = register_module("fc", torch::nn::Linear(4, 3));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(doubles({4}, 5));
    norm->bias.copy_(doubles({4}, 6));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::tanh(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
using Alone = NetImpl<torch::nn::BatchNorm2d>;
using Together = NetImpl<SyncBatchNorm>;

// Rank r has r + 1 samples of `all`.
Samples uneven_part(const Samples& all, int rank) {
  return all.part(rank * (rank + 1) / 2, rank + 1);
}

RANK_TEST(SyncBatchNorm, WeighedIsOneBatch, 1, 2, 3) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<Together>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<Alone>(torch::nn::BatchNorm2d(4));
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
  const auto together = std::make_shared<Together>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<Alone>(torch::nn::BatchNorm2d(4));
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
    const torch::Tensor own = together(all.part(rank).x);
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
  const auto together = std::make_shared<Together>(SyncBatchNorm(4, session));
  const auto alone = std::make_shared<Alone>(torch::nn::BatchNorm2d(4));
  DataParallel model(together, session);
  const Samples all(4, 0, {2, 5, 5}), own = rank.index() == 0 ? all : all.part(0, 0);
  model.weigh(static_cast<double>(own.x.size(0)));
  squared_error(model(own.x), own.y).backward();
  squared_error(alone->forward(all.x), all.y).backward();
  expect_same_gradients(*together, *alone);
}

RANK_TEST(SyncBatchNorm, RefusesToJoin, 2) {
  const Session session = session_of(rank);
  const auto together = std::make_shared<Together>(SyncBatchNorm(4, session));
  DataParallel model(together, session);
  EXPECT_THAT(usage_error_of([&] { model.join(); }), testing::HasSubstr("join() in a module with"));
}

}  // namespace
}  // namespace troika::test
