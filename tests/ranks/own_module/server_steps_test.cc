// Parameter servers of a module of the user's own, and their tables of rows.
#include <troika/parallel/data_parallel/local_steps.h>
#include <troika/rpc/rpc.h>
#include <troika/server/server_steps.h>

#include <cmath>
#include <set>

#include "ranks/own_module/own_module.h"
#include "support/temporary_folder.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kServerSteps = 6, kServerBatch = 12;

// The kinds' own defaults of what a test does not set.
ServerStepsOptions options_of(const char* kind, double lr, std::optional<std::int64_t> staleness) {
  ServerStepsOptions options;
  options.steps = kServerSteps;
  options.batch_size = kServerBatch;
  options.staleness = staleness;
  options.optimizer.kind = Chosen<OptimizerKind>::named(kind);
  options.optimizer.lr = lr;
  options.optimizer.weight_decay = 0.01;
  return options;
}

// Each step has a batch of its own, or `batches` take turns.
Samples samples_of(const StepSamples& step, std::int64_t batches = 1000) {
  const Samples all(kServerBatch, static_cast<std::uint64_t>((step.step - 1) % batches));
  return all.slice(step.first - (step.step - 1) * kServerBatch, step.count);
}

// Skips where this build has no Arrow Flight.
bool has_flight() {
  try {
    const RpcServer tried({"127.0.0.1:0"}, [](const RpcRequest&) { return RpcMessage(); });
    return true;
  } catch (const UsageError&) {
    return false;
  }
}
#define NEEDS_FLIGHT() \
  if (!has_flight()) GTEST_SKIP() << "TROIKA_ARROW is off"

torch::Tensor trained_alone(const char* kind, double clip) {
  Mlp net(1);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (std::string(kind) == "sgd") {
    optimizer = std::make_unique<torch::optim::SGD>(
        net->parameters(), torch::optim::SGDOptions(0.05).weight_decay(0.01));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        net->parameters(),
        torch::optim::AdamWOptions(0.05).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.01));
  }
  for (std::int64_t step = 0; step < kServerSteps; ++step) {
    const Samples all(kServerBatch, static_cast<std::uint64_t>(step));
    optimizer->zero_grad();
    squared_error(net(all.x), all.y).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optimizer->step();
  }
  return parameters_of(*net);
}

RANK_TEST(ServerSteps, WithoutStalenessAreThoseOfOneProcess, 3) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  for (const char* kind : {"sgd", "adamw"}) {
    for (const int servers : {1, 2}) {
      for (const double clip : {0.0, 0.3}) {
        Mlp net(static_cast<std::uint64_t>(session.rank() + 1));  // rank 0's is taken
        ServerStepsOptions options = options_of(kind, 0.05, 0);
        options.servers = servers;
        options.grad_clip = clip;
        ServerSteps sync(net, session, options);
        std::int64_t steps = 0;
        while (const auto samples = sync.next()) {
          EXPECT_EQ(samples->step, ++steps);
          const Samples own = samples_of(*samples);
          squared_error(net(own.x), own.y).backward();
          sync.step();
          for (const torch::Tensor& each : net->parameters()) EXPECT_FALSE(each.grad().defined());
        }
        sync.close();
        EXPECT_EQ(steps, kServerSteps);
        // clip_grad_norm_ adds 1e-6 to the norm.
        EXPECT_LT(distance(parameters_of(*net), trained_alone(kind, clip)), clip > 0 ? 1e-5 : 1e-10)
            << kind << " servers " << servers << " clip " << clip;
      }
    }
  }
}

RANK_TEST(ServerSteps, OfAnyStalenessTakeEachSampleOnce, 3) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  Mlp net(1);
  const torch::Tensor start = parameters_of(*net);
  ServerStepsOptions options = options_of("sgd", 0.02, std::nullopt);
  options.servers = 2;
  options.divides_by_staleness = true;
  ServerSteps sync(net, session, options);
  const torch::Tensor taken = torch::zeros({kServerSteps * kServerBatch}, torch::kDouble);
  while (const auto samples = sync.next()) {
    taken.narrow(0, samples->first, samples->count).add_(1);
    const Samples own = samples_of(*samples);
    squared_error(net(own.x), own.y).backward();
    sync.step({.learning_rate = 0.01});
  }
  std::int64_t updates = 0;
  for (const auto& [staleness, count] : sync.staleness()) updates += count;
  sync.close();
  EXPECT_EQ(session.sum(static_cast<double>(updates), "updates"), kServerSteps * session.size());
  session.world().all_reduce(taken, ReduceOp::kSum, session.call("taken")).wait();
  EXPECT_TRUE(torch::equal(taken, torch::ones_like(taken))) << taken;
  const torch::Tensor own = parameters_of(*net), first = own.clone();
  session.world().broadcast(first, 0, session.call("compare")).wait();
  EXPECT_TRUE(torch::equal(own, first));
  EXPECT_GT(distance(own, start), 1e-3);
}

// Two local steps a pass, and an outer step of SGD with Nesterov's momentum on the server.
RANK_TEST(ServerSteps, OfChangesAreLocalSteps, 3) {
  NEEDS_FLIGHT();
  constexpr std::int64_t kHalf = 2;  // samples of a local step
  const Session session = session_of(rank);
  const auto local_step = [](Mlp& net, torch::optim::Optimizer& optimizer, const Samples& own) {
    optimizer.zero_grad();
    squared_error(net(own.x), own.y).backward();
    optimizer.step();
  };
  Mlp net(1), other(1);
  torch::optim::Adam optimizer(net->parameters(), 0.01),
      optimizer_of_other(other->parameters(), 0.01);
  ServerStepsOptions options = options_of("sgd", 0.7, 0);
  options.optimizer.weight_decay = 0;
  options.optimizer.kind.as<MomentumOptions>() = {.momentum = 0.9, .nesterov = true};
  ServerSteps sync(net, session, options);
  LocalSteps expected(other, session, {.every_steps = 2, .outer_lr = 0.7, .outer_momentum = 0.9});
  while (const auto samples = sync.next()) {
    const Samples own = samples_of(*samples);
    for (std::int64_t half = 0; half < 2; ++half) {
      local_step(net, optimizer, own.slice(half * kHalf, kHalf));
      local_step(other, optimizer_of_other, own.slice(half * kHalf, kHalf));
      expected.step();
    }
    sync.push_change();
  }
  EXPECT_LT(distance(parameters_of(*net), parameters_of(*other)), 1e-12);
  sync.close();
}

// Of numbers from 0 to 9, several of them twice.
torch::Tensor ids_of(const StepSamples& step) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = step.first; i < step.first + step.count; ++i) {
    ids.push_back((i * 7 + step.step) % 10);
    ids.push_back(i % 3);
  }
  return torch::tensor(ids, torch::kLong).view({-1, 2});
}

torch::Tensor all_ids() {
  return torch::arange(10, torch::kLong);
}

// An embedding of both numbers of a sample, and a linear layer on them.
struct Head : torch::nn::Module {
  Head() {
    torch::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(8, 1));
    to(torch::kDouble);
  }
  torch::Tensor loss(const torch::Tensor& rows) {
    return (linear(rows.view({rows.size(0), 8})).tanh() - 0.5).square().mean();
  }
  torch::nn::Linear linear{nullptr};
};

// The same with torch::nn::Embedding, of these first rows.
torch::Tensor rows_trained_alone(RowRule rule, const torch::Tensor& rows) {
  const auto head = std::make_shared<Head>();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4)._weight(rows.clone()));
  torch::optim::SGD dense(head->parameters(), torch::optim::SGDOptions(0.1));
  std::unique_ptr<torch::optim::Optimizer> sparse;
  if (rule == RowRule::kSgd) {
    sparse =
        std::make_unique<torch::optim::SGD>(embedding->parameters(), torch::optim::SGDOptions(0.2));
  } else if (rule == RowRule::kAdagrad) {
    sparse = std::make_unique<torch::optim::Adagrad>(embedding->parameters(),
                                                     torch::optim::AdagradOptions(0.2).eps(1e-8));
  } else {
    sparse = std::make_unique<torch::optim::Adam>(embedding->parameters(),
                                                  torch::optim::AdamOptions(0.2).eps(1e-8));
  }
  for (std::int64_t step = 1; step <= kServerSteps; ++step) {
    dense.zero_grad();
    sparse->zero_grad();
    const StepSamples all{step, (step - 1) * kServerBatch, kServerBatch};
    head->loss(embedding(ids_of(all))).backward();
    dense.step();
    sparse->step();
  }
  return embedding->weight.detach();
}

RANK_TEST(ServerSteps, RowsOfATableAreThoseOfAnEmbedding, 3) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kAdam}) {
    for (const int servers : {1, 3}) {
      const auto head = std::make_shared<Head>();
      ServerStepsOptions options = options_of("sgd", 0.1, 0);
      options.optimizer.weight_decay = 0;
      options.servers = servers;
      ServerSteps sync(head, session, options);
      const ServerTable table = sync.table(
          {.name = "numbers", .columns = 4, .initial_std = 1, .rule = rule, .lr_factor = 2});
      const torch::Tensor first_rows = table.lookup(all_ids());
      EXPECT_EQ(first_rows.sizes(), at::IntArrayRef({10, 4}));
      while (const auto samples = sync.next()) {
        const torch::Tensor ids = ids_of(*samples);
        // In two lookups, which name rows of each other's.
        const torch::Tensor rows =
            torch::stack({table.lookup(ids.select(1, 0)), table.lookup(ids.select(1, 1))}, 1);
        EXPECT_TRUE(rows.requires_grad());
        head->loss(rows).backward();
        sync.step();
      }
      EXPECT_LT(distance(table.lookup(all_ids()), rows_trained_alone(rule, first_rows)), 1e-10)
          << static_cast<int>(rule) << " on " << servers << " servers";
      sync.close();
      EXPECT_THROW(static_cast<void>(table.lookup(all_ids())), UsageError);
    }
  }
}

// 4,096 rows a step, each pulled and pushed once.
RANK_TEST(ServerSteps, SendHardlyMoreThanTheRowsThatTheyTrain, 2) {
  NEEDS_FLIGHT();
  constexpr std::int64_t kRows = 4096, kColumns = 64;
  const Session session = session_of(rank);
  torch::nn::Linear head(kColumns, 1);
  ServerStepsOptions options = options_of("sgd", 0.1, 0);
  options.batch_size = kRows;
  options.servers = 2;
  ServerSteps sync(head, session, options);
  const ServerTable table = sync.table({.name = "rows", .columns = kColumns});
  while (const auto samples = sync.next()) {
    const torch::Tensor ids = torch::arange(samples->first, samples->first + samples->count);
    head(table.lookup(ids)).square().mean().backward();
    sync.step();
  }
  const ServerTraffic own = sync.traffic();
  const double bytes = session.sum(static_cast<double>(own.sent + own.received), "bytes");
  const double rows = 2.0 * kServerSteps * kRows * kColumns * sizeof(float);
  EXPECT_GT(bytes, rows);
  EXPECT_LT(bytes, 1.05 * rows);
  sync.close();
}

RANK_TEST(ServerSteps, GoOnFromWhatTheServersHaveSaved, 2) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  const TemporaryFolder folder;
  const std::string shared = session.gather(folder.path().string(), "folder")[0];
  struct Result {
    torch::Tensor parameters, rows;
  };
  const auto train = [&](std::int64_t stop, const std::string& name) {
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
    net->to(torch::kDouble);
    ServerStepsOptions options = options_of("adamw", 0.05, 0);
    options.servers = 2;
    options.folder = std::filesystem::path(shared) / name;
    options.save_every_steps = 2;
    ServerSteps sync(net, session, options);
    const ServerTable table = sync.table({.name = "numbers", .columns = 6, .initial_std = 1});
    std::int64_t last = 0;
    while (const auto samples = sync.next()) {
      if (samples->step > stop) {
        session.barrier("stop");
        return Result{};
      }
      last = samples->step;
      const Samples own = samples_of(*samples);
      squared_error(net->forward(own.x + table.lookup(ids_of(*samples).select(1, 0))), own.y)
          .backward();
      sync.step();
    }
    EXPECT_EQ(last, kServerSteps);
    std::vector<torch::Tensor> buffers = {parameters_of(*net)};
    for (const auto& each : net->buffers()) buffers.push_back(each.to(torch::kDouble).flatten());
    const Result result{torch::cat(buffers), table.lookup(all_ids())};
    sync.close();
    return result;
  };
  const Result whole = train(kServerSteps, "whole");
  static_cast<void>(train(4, "stopped"));
  const Result resumed = train(kServerSteps, "stopped");
  ASSERT_TRUE(whole.parameters.defined() && resumed.parameters.defined());
  EXPECT_TRUE(torch::equal(resumed.parameters, whole.parameters));
  EXPECT_TRUE(torch::equal(resumed.rows, whole.rows));
  session.barrier("folder");
}

RANK_TEST(ServerSteps, LeaveOutAGradientThatIsNotFinite, 2) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  Mlp net(1);
  ServerStepsOptions options = options_of("sgd", 0.1, 0);
  options.steps = 1;
  ServerSteps sync(net, session, options);
  const torch::Tensor start = parameters_of(*net);
  while (const auto samples = sync.next()) {
    const Samples own = samples_of(*samples);
    (squared_error(net(own.x), own.y) / (rank.index() == 1 ? 0.0 : 1.0)).backward();
    sync.step();
  }
  EXPECT_TRUE(torch::equal(parameters_of(*net), start));
  sync.close();
}

// Trains, and returns what all ranks have sent.
double train(Mlp& net, const Session& session, const ServerStepsOptions& options,
             std::int64_t batches = 1000) {
  ServerSteps sync(net, session, options);
  while (const auto samples = sync.next()) {
    const Samples own = samples_of(*samples, batches);
    squared_error(net(own.x), own.y).backward();
    sync.step();
  }
  sync.close();
  const torch::Tensor sent =
      torch::full({1}, static_cast<double>(sync.traffic().sent), torch::kDouble);
  session.world().all_reduce(sent, ReduceOp::kSum, session.call("sent")).wait();
  return sent.item<double>();
}

RANK_TEST(ServerSteps, PushingAllOfTopKIsNoCompression, 3) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  for (const auto& codec : {top_k_codec(1), random_k_codec(1)}) {
    for (const int servers : {1, 2}) {
      Mlp net(1);
      ServerStepsOptions options = options_of("sgd", 0.05, 0);
      options.servers = servers;
      options.compress = codec;
      static_cast<void>(train(net, session, options));
      EXPECT_LT(distance(parameters_of(*net), trained_alone("sgd", 0)), 1e-10)
          << codec->describe() << " servers " << servers;
    }
  }
}

constexpr std::int64_t kBatches = 2;

double loss_of(Mlp& net) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    const Samples all(kServerBatch, batch);
    sum += squared_error(net(all.x), all.y).item<double>();
  }
  return sum;
}

// Few values, or values of few bits, train nearly as well, and are fewer bytes.
RANK_TEST(ServerSteps, TrainWithCompressedPushes, 2) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  for (const std::optional<std::int64_t> staleness : {std::optional<std::int64_t>(0), {}}) {
    ServerStepsOptions options = options_of("sgd", staleness ? 0.2 : 0.1, staleness);
    options.steps = 60;
    Mlp plain(1), untrained(1);
    const double bytes = train(plain, session, options, kBatches);
    const double gain = loss_of(untrained) - loss_of(plain);
    EXPECT_GT(gain, 0.2 * loss_of(untrained));
    for (const auto& codec : {int8_codec(), top_k_codec(0.25), qsgd_codec(), bf16_codec()}) {
      options.compress = codec;
      Mlp net(1);
      EXPECT_LT(train(net, session, options, kBatches), bytes) << codec->describe();
      EXPECT_LT(loss_of(net), loss_of(plain) + 0.2 * gain) << codec->describe();
      EXPECT_GT(distance(parameters_of(*net), parameters_of(*plain)), 0);
    }
  }
}

// What is left to be sent goes on behind a step that all ranks save.
RANK_TEST(ServerSteps, KeepErrorsWhereAllRanksMeet, 2) {
  NEEDS_FLIGHT();
  const Session session = session_of(rank);
  const TemporaryFolder folder;
  const std::string shared = session.gather(folder.path().string(), "folder")[0];
  ServerStepsOptions options = options_of("sgd", 0.05, 0);
  options.compress = top_k_codec(0.2);
  Mlp whole(1), met(1);
  static_cast<void>(train(whole, session, options));
  options.folder = shared;
  options.save_every_steps = 2;
  static_cast<void>(train(met, session, options));
  EXPECT_TRUE(torch::equal(parameters_of(*met), parameters_of(*whole)));
  EXPECT_GT(distance(parameters_of(*met), trained_alone("sgd", 0)), 1e-6);
  session.barrier("folder");
}

RANK_TEST(ServerSteps, RefuseWhatDoesNotFit, 2) {
  const Session session = session_of(rank);
  const auto refused = [&](ServerStepsOptions options, const std::string& why) {
    try {
      const ServerSteps sync(Mlp(1), session, std::move(options));
      ADD_FAILURE() << why;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  ServerStepsOptions options = options_of("sgd", 0.1, 0);
  options.servers = 3;
  refused(options, "from 1 to the number of ranks, 2");
  options = options_of("sgd", 0.1, 0);
  options.batch_size = 1;
  refused(options, "at least a sample for each");
  options = options_of("lamb", 0.1, 0);
  options.servers = 2;
  refused(options, "norms of whole parameters");
  options = options_of(rank.index() == 0 ? "sgd" : "adamw", 0.1, 0);
  refused(options, "rank 0 and rank 1 differ");
  options = options_of("sgd", 0.1, 0);
  options.compress = int8_codec(rank.index() == 0 ? 64 : 128);
  refused(options, "rank 0 and rank 1 differ");
}

}  // namespace
}  // namespace troika::test
