// Gossip of a module of the user's own, and islands of several ranks.
#include <troika/parallel/data_parallel/gossip_steps.h>
#include <troika/parallel/data_parallel/local_steps.h>
#include <troika/session/islands.h>

#include "ranks/own_module/own_module.h"
#include "ranks/own_module/own_pipeline.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr int kGossipSteps = 5;

struct Gossiped {
  torch::Tensor parameters;
  double distance = 0;
};

// Trains on this rank's samples, and calls sync.step() after each step.
template <class Sync>
void train_in_company(const Session& session, Mlp& net, Sync& sync) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kGossipSteps; ++step) {
    const Samples own =
        Samples(4 * session.size(), static_cast<std::uint64_t>(step)).slice(session.rank() * 4, 4);
    optimizer.zero_grad();
    squared_error(net(own.x), own.y).backward();
    optimizer.step();
    sync.step();
  }
}

Gossiped gossiped(const Session& session, const GossipStepsOptions& options) {
  Mlp net(static_cast<std::uint64_t>(session.rank() + 1));  // rank 0's is taken
  GossipSteps sync(net, session, options);
  EXPECT_EQ(sync.distance(), 0);
  train_in_company(session, net, sync);
  const double apart = sync.distance();
  sync.average();
  EXPECT_LT(sync.distance(), 1e-14);
  return {parameters_of(*net), apart};
}

torch::Tensor averaged(const Session& session) {
  Mlp net(static_cast<std::uint64_t>(session.rank() + 1));
  LocalSteps sync(net, session, {.every_steps = 1});
  train_in_company(session, net, sync);
  return parameters_of(*net);
}

RANK_TEST(GossipSteps, WithAllOthersAreTheMeanOfAll, 1, 3) {
  const Session session = session_of(rank);
  const Gossiped found = gossiped(session, {.topology = Topology::kComplete, .overlap = false});
  EXPECT_LT(distance(found.parameters, averaged(session)), 1e-12);
  EXPECT_LT(found.distance, 1e-12);
}

RANK_TEST(GossipSteps, KeepRanksNearEachOther, 4) {
  const Session session = session_of(rank);
  for (const Topology topology : {Topology::kRing, Topology::kExponential}) {
    for (const bool overlap : {false, true}) {
      const Gossiped found = gossiped(session, {topology, overlap});
      EXPECT_GT(found.distance, 1e-4);
      EXPECT_LT(found.distance, 0.5);
      const torch::Tensor first = found.parameters.clone();
      session.world().broadcast(first, 0, session.call("compare")).wait();
      EXPECT_LT(distance(first, found.parameters), 1e-14);
    }
  }
}

// Nothing but exchanges: the mean of all stays, and ranks come together.
RANK_TEST(GossipSteps, LeaveTheMeanAsItIs, 4) {
  const Session session = session_of(rank);
  Mlp net(1);
  GossipSteps sync(net, session, {.topology = Topology::kRing, .overlap = false});
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& each : net->parameters()) each.add_(rank.index());
  const torch::Tensor before = session.average(parameters_of(*net), "mean");
  double apart = sync.distance();
  for (int step = 0; step < 6; ++step) {
    sync.step();
    EXPECT_LT(sync.distance(), 0.7 * apart);
    apart = sync.distance();
  }
  EXPECT_LT(distance(session.average(parameters_of(*net), "mean"), before), 1e-13);
}

RANK_TEST(GossipSteps, RefuseOtherModules, 2) {
  torch::nn::Linear other(2, rank.index() + 1);
  try {
    const GossipSteps sync(other, session_of(rank));
    ADD_FAILURE() << "two shapes of one parameter";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 and rank 1 differ: 'weight [1, 2]"));
  }
}

// Two islands, each a pipeline of two ranks, that exchange after each step of SGD: as if all were
// one.
RANK_TEST(Islands, OfPipelinesThatExchangeAfterEachStepAreOneProcess, 4) {
  const Session session = Session::join(world_of(rank), {.timeout = Seconds(30)});
  const Islands islands = make_islands(session, 2);
  EXPECT_EQ(islands.island, rank.index() / 2);
  EXPECT_EQ(islands.islands, 2);
  constexpr std::int64_t kSamples = 8;
  ModulePipelineOptions options;
  options.type = at::kDouble;
  options.pipeline = 2;
  ModulePipeline model(small_net(), loss_sum, islands.inside, options);
  ReplicaTensors tensors{model.parameters(), {}};
  LocalSteps sync(tensors, islands.across, {.every_steps = 1});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));

  ModulePipelineOptions alone = options;
  alone.pipeline = 1;
  ModulePipeline whole(small_net(), loss_sum, Session::on(Group()), alone);
  torch::optim::SGD optimizer_of_whole(whole.parameters(), torch::optim::SGDOptions(0.05));

  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples all(2 * kSamples, step, {2, 6, 6});
    const Samples own = all.slice(islands.island * kSamples, kSamples);
    model.train(own.x, own.y);
    optimizer.step();
    sync.step();
    whole.train(all.x, all.y);
    optimizer_of_whole.step();
  }
  std::map<std::string, torch::Tensor> expected;
  whole.each_value(
      [&](const std::string& name, const torch::Tensor& value) { expected[name] = value.clone(); });
  model.each_value([&](const std::string& name, const torch::Tensor& value) {
    EXPECT_LT(distance(value, expected.at(name)), 1e-12) << name;
  });
}

RANK_TEST(Islands, AreAWholeNumber, 3) {
  const Session session = Session::join(world_of(rank), {.timeout = Seconds(30)});
  EXPECT_THROW(static_cast<void>(make_islands(session, 2)), UsageError);
  EXPECT_THROW(static_cast<void>(make_islands(session, 0)), UsageError);
  EXPECT_EQ(make_islands(session, 1).islands, 3);
}

}  // namespace
}  // namespace troika::test
