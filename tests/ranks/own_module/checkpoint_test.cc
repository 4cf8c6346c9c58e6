// Checkpoints of programs of the user's own: training goes on as if it had never stopped, on ranks
// of any number and with any stage of ZeRO.
#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint.h>
#include <troika/checkpoint/write_lock.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>
#include <troika/parallel/data_parallel/grad_scaler.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include <fstream>
#include <limits>
#include <set>

#include "ranks/own_module/own_pipeline.h"

namespace troika::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Linear layers with batch-norm, dropout and a frozen parameter.
struct StatefulNetImpl : torch::nn::Module {
  explicit StatefulNetImpl(std::uint64_t seed, double dropout) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 9));
    norm = register_module("norm", torch::nn::BatchNorm1d(9));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    last = register_module("last", torch::nn::Linear(9, 3));
    frozen = register_parameter("frozen", torch::randn({3}), /*requires_grad=*/false);
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(drop(torch::tanh(norm(first(x))))) + frozen;
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::Tensor frozen;
};
TORCH_MODULE(StatefulNet);

DataParallelOptions at_stage(int stage) {
  DataParallelOptions options;
  options.zero_stage = stage;
  return options;
}

// A program that trains on this rank and others, or alone.
template <class Optimizer, class Options>
struct Program {
  Program(const Session& the_session, const fs::path& folder, int stage, Options options,
          std::uint64_t seed = 1, double dropout = 0.2)
      : session(the_session),
        net(seed, dropout),
        model(net, session, at_stage(stage)),
        optimizer(model, options),
        sampler(40, session),
        checkpoint(folder, session) {
    model.seed_by_rank(3);
    checkpoint.add(model).add(optimizer).add(sampler);
  }

  // `batch` samples of this rank.
  void train(int steps, std::size_t batch) {
    for (int i = 0; i < steps; ++i) {
      auto indices = sampler.next(batch);
      if (!indices) {
        sampler.reset();
        indices = sampler.next(batch);
      }
      std::vector<torch::Tensor> x;
      for (const std::size_t index : *indices) x.push_back(Samples(1, index).x);
      taken.insert(taken.end(), indices->begin(), indices->end());
      optimizer.zero_grad();
      model(torch::cat(x)).square().sum().backward();
      optimizer.step();
    }
  }

  Session session;
  StatefulNet net;
  DataParallel<StatefulNet> model;
  ZeroRedundancyOptimizer<Optimizer> optimizer;
  DistributedSampler sampler;
  Checkpoint checkpoint;
  std::vector<std::size_t> taken;
};

using AdamProgram = Program<torch::optim::AdamW, torch::optim::AdamWOptions>;
using SgdProgram = Program<torch::optim::SGD, torch::optim::SGDOptions>;

void expect_same_bits(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto theirs = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), theirs[item.key()])) << item.key();
  }
  const auto buffers = expected.named_buffers();
  for (const auto& item : actual.named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()])) << item.key();
  }
}

RANK_TEST(OwnCheckpoint, GoesOnWithTheSameBits, 1, 2, 3) {
  const Session session = session_of(rank);
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    const fs::path folder = rank.folder() / ("stage-" + std::to_string(stage));
    const torch::optim::AdamWOptions options = torch::optim::AdamWOptions(0.01).amsgrad(true);
    AdamProgram straight(session, rank.folder() / "none", stage, options);
    straight.train(9, 3);
    AdamProgram first(session, folder, stage, options);
    EXPECT_EQ(first.checkpoint.load(), std::nullopt);
    first.train(4, 3);
    first.checkpoint.save(4);
    first.train(2, 3);  // not saved, and lost
    first.checkpoint.wait();
    AdamProgram second(session, folder, stage, options, /*seed=*/77);
    EXPECT_EQ(second.checkpoint.load(), 4);
    second.train(5, 3);
    expect_same_bits(*second.net, *straight.net);
    EXPECT_EQ(second.taken, (std::vector(straight.taken.begin() + 12, straight.taken.end())));
  }
}

// Without dropout and batch statistics that differ, one rank with the whole batch gives the
// numbers.
RANK_TEST(OwnCheckpoint, GoesFromAnyNumberOfRanksToAnyOther, 2, 4) {
  const Session session = session_of(rank), alone = Session::on(Group());
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.01).momentum(0.9);
  const auto width = static_cast<std::size_t>(rank.size());
  for (const int stage : {0, 2}) {
    const fs::path folder = rank.folder() / ("stage-" + std::to_string(stage));
    SgdProgram many(session, folder, stage, options, 1, 0);
    many.net->norm->eval();
    many.train(3, 2);
    many.checkpoint.save(3);
    many.checkpoint.wait();
    many.train(2, 2);
    SgdProgram one(alone, folder, 0, options, 5, 0);
    one.net->norm->eval();
    EXPECT_EQ(one.checkpoint.load(), 3);
    for (int step = 0; step < 2; ++step) {
      // Gradients of many ranks are averaged.
      const auto indices = one.sampler.next(2 * width);
      std::vector<torch::Tensor> x;
      for (const std::size_t index : *indices) x.push_back(Samples(1, index).x);
      one.optimizer.zero_grad();
      (one.model(torch::cat(x)).square().sum() / static_cast<double>(width)).backward();
      one.optimizer.step();
    }
    expect_same_values(*many.net, *one.net, 1e-12);
    // And back.
    rank.wait_for_all("read " + std::to_string(stage));
    if (rank.index() == 0) {
      one.checkpoint.save(5);
      one.checkpoint.wait();
    }
    rank.wait_for_all("written " + std::to_string(stage));
    SgdProgram again(session, folder, stage == 0 ? 2 : 1, options, 6, 0);
    EXPECT_EQ(again.checkpoint.load(), 5);
    expect_same_values(*again.net, *one.net, 0);
  }
}

RANK_TEST(OwnCheckpoint, HoldsNumbersAndTheScale, 2) {
  const Session session = session_of(rank);
  const fs::path folder = rank.folder() / "checkpoints";
  GradScaler scaler(session);
  scaler.load({.scale = 1024, .good_steps = 7});
  Checkpoint checkpoint(folder, session, {.keep = 2});
  checkpoint.add(scaler);
  checkpoint.set("epoch", std::int64_t{3});
  checkpoint.set("best", 0.25);
  checkpoint.set("worst", std::numeric_limits<double>::infinity());
  for (const std::int64_t step : {1, 2, 3}) checkpoint.save(step);
  checkpoint.wait();
  GradScaler other(session);
  Checkpoint loaded(folder, session);
  loaded.add(other);
  EXPECT_EQ(loaded.load(), 3);
  EXPECT_EQ(other.state().scale, 1024);
  EXPECT_EQ(other.state().good_steps, 7);
  EXPECT_EQ(loaded.integer("epoch"), 3);
  EXPECT_EQ(loaded.number("best"), 0.25);
  EXPECT_EQ(loaded.number("worst"), std::numeric_limits<double>::infinity());
  EXPECT_THROW((void)loaded.number("none"), DataError);
  rank.wait_for_all("loaded");
  EXPECT_FALSE(fs::exists(folder / "step-00000001"));
  EXPECT_TRUE(fs::exists(folder / "step-00000002"));
}

RANK_TEST(OwnCheckpoint, SavedTwiceAtOneStepIsTheSecond, 1, 2) {
  const Session session = session_of(rank);
  const fs::path folder = rank.folder() / "checkpoints";
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.01).momentum(0.9);
  SgdProgram program(session, folder, 2, options);
  const auto files = [&](const std::string& which) {
    std::set<std::string> names;
    rank.wait_for_all("saved " + which);
    for (const auto& each : fs::directory_iterator(folder / "step-00000001")) {
      if (each.path().extension() == ".safetensors") names.insert(each.path().filename().string());
    }
    rank.wait_for_all("listed " + which);
    return names;
  };
  program.train(1, 2);
  program.checkpoint.save(1);
  program.checkpoint.wait();
  const std::set<std::string> first = files("first");
  program.train(1, 2);
  program.checkpoint.save(1);
  program.checkpoint.wait();
  for (const std::string& name : files("second")) EXPECT_FALSE(first.contains(name)) << name;
  SgdProgram loaded(session, folder, 2, options, 5);
  EXPECT_EQ(loaded.checkpoint.load(), 1);
  expect_same_bits(*loaded.net, *program.net);
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

RANK_TEST(OwnCheckpoint, IsRefusedWhereItIsOfAnotherModelOrOptimiser, 1, 2) {
  const Session session = session_of(rank);
  const fs::path folder = rank.folder() / "checkpoints";
  SgdProgram sgd(session, folder, 0, torch::optim::SGDOptions(0.01).momentum(0.9));
  sgd.train(1, 2);
  sgd.checkpoint.save(1);
  sgd.checkpoint.wait();
  AdamProgram adam(session, folder, 0, torch::optim::AdamWOptions(0.01));
  EXPECT_THAT(refusal([&] { adam.checkpoint.load(); }),
              HasSubstr("'momentum_buffer' of another optimiser than torch::optim::AdamW"));
  Mlp mlp;
  DataParallel other(mlp, session);
  Checkpoint of_other(folder, session);
  of_other.add(other);
  EXPECT_THAT(refusal([&] { of_other.load(); }), HasSubstr("tensor 'first.weight'"));
  Mlp stranger;
  torch::optim::SGD strange(stranger->parameters(), 0.1);
  EXPECT_THAT(refusal([&] { of_other.add(strange); }), HasSubstr("no parameter of the checkpoint"));
  torch::optim::LBFGS lbfgs(mlp->parameters());
  EXPECT_THAT(refusal([&] { of_other.add(lbfgs, "l"); }), HasSubstr("this optimiser"));
  EXPECT_THAT(refusal([&] { of_other.add(other); }), HasSubstr("without a name"));
}

RANK_TEST(OwnCheckpoint, SaysThatItCannotBeWrittenAndTakesTheNext, 2) {
  const Session session = session_of(rank);
  const fs::path folder = rank.folder() / "checkpoints";
  if (rank.index() == 0) write_file_atomically(folder, "a file");
  rank.wait_for_all("there");
  SgdProgram program(session, folder, 0, torch::optim::SGDOptions(0.01));
  program.checkpoint.save(1);
  EXPECT_THAT(refusal([&] { program.checkpoint.wait(); }), HasSubstr("cannot be written: rank 0"));
  rank.wait_for_all("said");
  if (rank.index() == 0) fs::remove(folder);
  rank.wait_for_all("removed");
  program.checkpoint.save(2);
  program.checkpoint.wait();
  EXPECT_EQ(program.checkpoint.load(), 2);
}

RANK_TEST(OwnCheckpoint, NamesAnotherProgramThatWritesToTheFolder, 1, 2) {
  const Session session = session_of(rank);
  const fs::path folder = rank.folder() / "checkpoints";
  UniqueFd other;
  if (rank.index() == 0) {
    make_folders(folder);
    other = lock_folder(folder, "");
    std::ofstream(lock_path(folder)) << "process 4711 on host b";
  }
  rank.wait_for_all("locked");
  SgdProgram program(session, folder, 0, torch::optim::SGDOptions(0.01));
  EXPECT_EQ(program.checkpoint.load(), std::nullopt);  // any program may load
  try {
    program.checkpoint.save(1);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("checkpoints' is being written by process 4711 on host b"));
    EXPECT_THAT(error.hint(), HasSubstr("give each its own"));
  }
  rank.wait_for_all("refused");
  other.reset();
  rank.wait_for_all("unlocked");
  program.checkpoint.save(1);
  program.checkpoint.wait();
  EXPECT_EQ(program.checkpoint.load(), 1);
}

// The program never calls wait(). It has one rank: several of a group without a store tell each
// other of their files in wait().
RANK_TEST(OwnCheckpoint, IsThereAfterAnError, 1) {
  const fs::path folder = rank.folder() / "checkpoints";
  const auto fail = [&] {
    const Session session = session_of(rank);
    SgdProgram program(session, folder, 0, torch::optim::SGDOptions(0.01));
    program.checkpoint.save(1);
    throw DataError("not finite");
  };
  EXPECT_THROW(fail(), DataError);
  rank.wait_for_all("ended");
  EXPECT_TRUE(fs::exists(folder / "step-00000001/manifest.json"));
}

struct PipelineProgram {
  PipelineProgram(const Rank& rank, int pipeline, int stage)
      : model(small_net(), loss_sum, groups_over(rank, pipeline),
              {.microbatches = 2, .zero_stage = stage, .type = at::kDouble}),
        optimizer(model.parameters(), torch::optim::AdamWOptions(0.01)),
        checkpoint(rank.folder() / "checkpoints", session_of(rank)) {
    checkpoint.add(model).add(optimizer);
  }
  double train() {
    const Samples batch = slice_of(Samples(8, 0, {2, 6, 6}), model);
    const double loss = model.train(batch.x, batch.y);
    optimizer.step();
    return loss;
  }
  ModulePipeline model;
  torch::optim::AdamW optimizer;
  Checkpoint checkpoint;
};

RANK_TEST(OwnCheckpoint, OfAPipelineGoesToAnyOther, 2, 4) {
  const std::vector<std::pair<int, int>> layouts = {{1, 0}, {1, 3}, {2, 0}, {2, 1}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(i);
    const auto [pipeline, stage] = layouts[i];
    const auto [next_pipeline, next_stage] = layouts[(i + 1) % layouts.size()];
    PipelineProgram from(rank, pipeline, stage);
    (void)from.train();
    (void)from.train();
    const auto step = static_cast<std::int64_t>(i);
    from.checkpoint.save(step);
    from.checkpoint.wait();
    PipelineProgram same(rank, pipeline, stage), other(rank, next_pipeline, next_stage);
    EXPECT_EQ(same.checkpoint.load(), step);
    EXPECT_EQ(other.checkpoint.load(), step);
    for (int k = 0; k < 3; ++k) {
      const double expected = from.train();
      EXPECT_EQ(same.train(), expected);
      EXPECT_NEAR(other.train(), expected, 1e-9 * expected);
    }
  }
}

}  // namespace
}  // namespace troika::test
