// Local steps of a module of the user's own: what they are equal to, and what they are not.
#include <troika/parallel/data_parallel/local_steps.h>

#include "ranks/own_module/own_module.h"
#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 6;

torch::Tensor trained(const Session& session, const LocalStepsOptions& options, double momentum,
                      std::int64_t own_samples = 4) {
  Mlp net(static_cast<std::uint64_t>(session.rank() + 1));  // rank 0's is taken
  LocalSteps sync(net, session, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(momentum));
  for (int step = 0; step < kSteps; ++step) {
    const Samples all(own_samples * session.size(), static_cast<std::uint64_t>(step));
    const Samples own = all.slice(session.rank() * own_samples, own_samples);
    optimizer.zero_grad();
    squared_error(net(own.x), own.y).backward();
    optimizer.step();
    EXPECT_EQ(sync.step(static_cast<double>(own_samples)), (step + 1) % options.every_steps == 0);
  }
  return parameters_of(*net);
}

torch::Tensor trained_together(const Session& session, double momentum) {
  Mlp net(1);
  DataParallel model(net, session);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(momentum));
  for (int step = 0; step < kSteps; ++step) {
    const Samples own =
        Samples(4 * session.size(), static_cast<std::uint64_t>(step)).slice(session.rank() * 4, 4);
    optimizer.zero_grad();
    squared_error(model(own.x), own.y).backward();
    optimizer.step();
  }
  return parameters_of(*net);
}

RANK_TEST(LocalSteps, OfOneAreThoseOfDataParallel, 3) {
  for (const double momentum : {0.0, 0.9}) {
    EXPECT_LT(distance(trained(session_of(rank), {.every_steps = 1}, momentum),
                       trained_together(session_of(rank), momentum)),
              1e-12);
  }
}

RANK_TEST(LocalSteps, OfSeveralEndEqualOnAllRanks, 3) {
  const torch::Tensor own = trained(session_of(rank), {.every_steps = 3}, 0.9);
  const torch::Tensor first = own.clone();
  rank.group().broadcast(first, 0, Rank::call("compare")).wait();
  EXPECT_TRUE(torch::equal(own, first));
  EXPECT_GT(distance(own, trained_together(session_of(rank), 0.9)), 1e-6);
}

// One round of DiLoCo, by hand.
RANK_TEST(LocalSteps, TakeAnOuterStepOfNesterov, 2) {
  const Session session = session_of(rank);
  Mlp net(1);
  const torch::Tensor start = parameters_of(*net);
  LocalSteps sync(net, session, {.every_steps = 1, .outer_lr = 0.7, .outer_momentum = 0.9});
  const torch::NoGradGuard no_grad;
  torch::Tensor expected = start.clone(), momentum = torch::zeros_like(start);
  for (int round = 0; round < 3; ++round) {
    // Rank 0 has trained on one target and moved by 1, rank 1 on three and by 2: g = -7/4.
    for (torch::Tensor& each : net->parameters()) each.add_(rank.index() + 1.0);
    EXPECT_TRUE(sync.step(rank.index() == 0 ? 1 : 3));
    momentum.mul_(0.9).sub_(1.75);
    expected.sub_((torch::full_like(expected, -1.75) + momentum * 0.9) * 0.7);
    EXPECT_LT(distance(parameters_of(*net), expected), 1e-12);
  }
}

// Two norms: four running statistics, and two counters, which stay those of the rank.
RANK_TEST(LocalSteps, AverageAllRunningStatisticsInOneCollective, 2) {
  const RecordedSession recorded(rank);
  torch::nn::Sequential net(torch::nn::BatchNorm1d(3), torch::nn::BatchNorm1d(5));
  LocalSteps sync(net, recorded.session(), {.every_steps = 1});
  const torch::NoGradGuard no_grad;
  for (const auto& each : net->named_buffers()) {
    each.value().fill_(each.value().numel() + 10 * rank.index());
  }
  EXPECT_TRUE(sync.step(1));
  for (const auto& each : net->named_buffers()) {
    const bool is_counter = !each.value().is_floating_point();
    const auto expected = each.value().numel() + (is_counter ? 10 * rank.index() : 5);
    EXPECT_TRUE(each.value().eq(expected).all().item<bool>()) << each.key();
  }
  const auto all = recorded.operations();
  const auto count = std::ranges::count_if(all, [](const RecordedOperation& each) {
    return each.label == "buffers" && each.operation == "all_reduce";
  });
  EXPECT_EQ(count, 1);
}

RANK_TEST(LocalSteps, RefuseOtherModulesAndOptions, 2) {
  const Session session = session_of(rank);
  torch::nn::Linear other(rank.index() + 1, 2);
  try {
    const LocalSteps sync(other, session);
    ADD_FAILURE() << "two shapes of one parameter";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the modules of rank 0 and rank 1 differ: 'weight [2, 1]"));
  }
  EXPECT_THROW(LocalSteps(Mlp(1), session, {.every_steps = 0}), UsageError);
  EXPECT_THROW(LocalSteps(Mlp(1), session, {.outer_momentum = 1}), UsageError);
}

}  // namespace
}  // namespace troika::test
