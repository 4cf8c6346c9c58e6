// What programs do with a ModulePipeline beside training: evaluation, writes by hand, saving and
// loading, parameters that come and go, and mistakes.
#include <memory>

#include "ranks/own_module/own_pipeline.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

ModulePipelineOptions doubles_at(int stage) {
  ModulePipelineOptions options = doubles_in("1f1b", 1);
  options.zero_stage = stage;
  return options;
}

RANK_TEST(ModulePipeline, TakesWhatIsWrittenAfterAnEvaluation, 2) {
  const PipelineGroups groups = groups_over(rank, 1);
  const Samples all(8, 0, {2, 6, 6});
  for (const int stage : {0, 1, 2, 3}) {
    ModulePipeline model(small_net(), loss_sum, groups, doubles_at(stage));
    const Samples own = slice_of(all, model);
    SingleProcessNet alone;
    std::vector<torch::Tensor> theirs;
    for (const auto& [name, tensor] : alone.parameters) theirs.push_back(tensor);
    torch::optim::SGD optimizer(model.parameters(), 0.5), reference(theirs, 0.5);
    const double before = model.train(own.x, own.y);
    alone.loss(all).backward();
    EXPECT_NEAR(model.evaluate(own.x, own.y), before, 1e-12);
    optimizer.step();
    reference.step();
    const double after = alone.loss(all).item<double>();
    EXPECT_GT(std::abs(before - after), 1e-3);
    EXPECT_NEAR(model.train(own.x, own.y), after, 1e-12) << "stage " << stage;
    // By hand, as averages of weights are swapped in.
    EXPECT_NEAR(model.evaluate(own.x, own.y), after, 1e-12) << "stage " << stage;
    const torch::NoGradGuard no_grad;
    for (const ParameterShard& shard : model.shards()) shard.tensor.mul_(0.5);
    for (const torch::Tensor& tensor : theirs) tensor.mul_(0.5);
    const double halved = alone.loss(all).item<double>();
    EXPECT_GT(std::abs(halved - after), 1e-3);
    EXPECT_NEAR(model.evaluate(own.x, own.y), halved, 1e-12) << "stage " << stage;
  }
}

RANK_TEST(ModulePipeline, HasWholeModulesFromTheStart, 2, 3) {
  for (const int stage : {0, 1, 2}) {
    const ModulePipeline model(small_net(), loss_sum, groups_over(rank, 1), doubles_at(stage));
    const SingleProcessNet alone;
    for (std::size_t i = 0; i < model.modules().size(); ++i) {
      for (const auto& item : model.modules()[i]->named_parameters()) {
        const std::string name = model.unit_names()[i] + "." + item.key();
        EXPECT_TRUE(torch::equal(item.value(), alone.parameters.at(name))) << name;
      }
    }
  }
}

// An error of one stage's ranks is told to all others.
RANK_TEST(ModulePipeline, TellsEveryStageOfAValidationError, 2, 4) {
  const PipelineGroups groups = groups_over(rank, 2);
  const auto error_of = [&](const std::vector<NamedUnit>& units) {
    return usage_error_of(
        [&] { const ModulePipeline model(units, loss_sum, groups, doubles_in("1f1b", 2)); });
  };
  std::vector<NamedUnit> units = small_net();
  units[7] = unit("last", [] { return torch::nn::Linear(7, 3); }, {3});
  EXPECT_THAT(error_of(units),
              HasSubstr("parameter 'last.weight' is of dtype Float, in a model of Double"));
  units = small_net();
  for (std::size_t i = 4; i < 8; ++i) {
    units[i] = unit("still" + std::to_string(i),
                    [] { return torch::nn::Sequential(torch::nn::Tanh()); }, {7});
  }
  EXPECT_THAT(error_of(units),
              HasSubstr("units from 'still4' to 'still7' have no parameters to train"));
  units = small_net();
  units[7] = unit("last",
                  [] {
                    torch::nn::Sequential net = dense(7, 3, 14);
                    net->register_buffer("table", torch::arange(3).expand({2, 3}));
                    return net;
                  },
                  {3});
  EXPECT_THAT(error_of(units),
              HasSubstr("buffer 'last.table' has several elements at one address"));
  if (rank.size() == 2) return;
  units = small_net();
  units[0] = unit("conv", [&] { return dense(72, 64 + rank.index(), 3); }, {4, 4, 4});
  EXPECT_THAT(error_of(units), HasSubstr("the modules of the ranks differ: parameter 'conv.1."));
}

// Other options or units on one rank would hang, or train something else.
RANK_TEST(ModulePipeline, TellsEveryRankOfAnotherSetup, 2, 4) {
  const PipelineGroups groups = groups_over(rank, 2);
  const bool is_last = rank.index() == rank.size() - 1;
  const auto error_of = [&](const std::vector<NamedUnit>& units, int microbatches) {
    ModulePipelineOptions options = doubles_in("1f1b", 2);
    options.microbatches = microbatches;
    return usage_error_of([&] { const ModulePipeline model(units, loss_sum, groups, options); });
  };
  EXPECT_THAT(error_of(small_net(), is_last ? 4 : 2),
              HasSubstr("the ModulePipeline differs between rank 0 and rank 1, first in "
                        "microbatches = 2"));
  std::vector<NamedUnit> units = small_net();
  if (is_last) units[7].name = "head";
  EXPECT_THAT(error_of(units, 2), HasSubstr("first in unit 'last'"));
}

RANK_TEST(ModulePipeline, NamesParametersThatComeAndGo, 2) {
  const Samples own(4, 0, {2, 6, 6});
  const auto error_after = [&](auto&& act) {
    ModulePipeline model(small_net(), loss_sum, groups_over(rank, 1), doubles_at(1));
    model.train(own.x, own.y);
    act(*model.modules()[2]);
    return usage_error_of([&] { model.train(own.x, own.y); });
  };
  EXPECT_THAT(error_after([](torch::nn::Module& module) {
                module.named_parameters()["1.bias"].requires_grad_(false);
              }),
              HasSubstr("parameter 'third.1.bias' was frozen"));
  EXPECT_THAT(error_after([](torch::nn::Module& module) {
                module.register_parameter("scale", torch::ones({1}, torch::kDouble));
              }),
              HasSubstr("parameter 'third.scale' was added"));
}

// Dropout that all units have, batch-norm, and a parameter that is not trained.
struct NormedImpl : torch::nn::Module {
  NormedImpl(std::int64_t in, std::int64_t out, std::uint64_t seed,
             const torch::nn::Dropout& shared) {
    torch::manual_seed(seed);
    linear = register_module("linear", torch::nn::Linear(in, out));
    norm = register_module("norm", torch::nn::BatchNorm1d(out));
    dropout = register_module("dropout", shared);
    frozen = register_parameter("frozen", torch::rand({out}), /*requires_grad=*/false);
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return dropout(norm(linear(x)) * frozen); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::Tensor frozen;
};
TORCH_MODULE(Normed);

std::vector<NamedUnit> normed_net(std::uint64_t seed, const torch::nn::Dropout& dropout) {
  return {unit("a", [=] { return Normed(6, 9, seed, dropout); }, {9}),
          unit("b", [=] { return Normed(9, 3, seed + 1, dropout); }, {3})};
}

RANK_TEST(ModulePipeline, SavesAndLoadsAllValues, 2) {
  const PipelineGroups groups = groups_over(rank, 1);
  const Samples own(5, static_cast<std::uint64_t>(rank.index()));
  for (const int stage : {0, 2, 3}) {
    ModulePipeline model(normed_net(1, torch::nn::Dropout(0.3)), loss_sum, groups,
                         doubles_at(stage));
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    model.train(own.x, own.y);
    optimizer.step();
    std::map<std::string, torch::Tensor> values;
    model.each_value(
        [&](const std::string& name, const torch::Tensor& value) { values[name] = value.clone(); });
    for (const char* name : {"a.linear.weight", "b.linear.bias", "b.frozen", "a.norm.running_mean",
                             "b.norm.num_batches_tracked"}) {
      EXPECT_TRUE(values.contains(name)) << name;
    }
    ModulePipeline other(normed_net(5, torch::nn::Dropout(0.3)), loss_sum, groups,
                         doubles_at(stage));
    const double wanted = model.evaluate(own.x, own.y);
    EXPECT_GT(std::abs(other.evaluate(own.x, own.y) - wanted), 1e-3);
    other.load_values([&](const std::string& name) { return values.at(name); });
    EXPECT_EQ(other.evaluate(own.x, own.y), wanted) << "stage " << stage;
    EXPECT_THAT(usage_error_of([&] {
                  other.load_values([](const std::string&) { return torch::ones({77}); });
                }),
                HasSubstr("'a.frozen' is [9], and its value to load [77]"));
  }
}

RANK_TEST(ModulePipeline, LeavesSharedModulesInTheirMode, 1) {
  const torch::nn::Dropout dropout(0.5);
  ModulePipeline model(normed_net(1, dropout), loss_sum, groups_over(rank, 1), doubles_at(0));
  const Samples own(4);
  model.evaluate(own.x, own.y);
  EXPECT_TRUE(dropout->is_training());
  for (const auto& module : model.modules()) {
    for (const auto& each : module->modules()) EXPECT_TRUE(each->is_training());
  }
}

// Throws in its forward pass when it is told to.
struct BrittleImpl : torch::nn::Module {
  explicit BrittleImpl(std::shared_ptr<bool> the_breaks) : breaks(std::move(the_breaks)) {
    linear = register_module("linear", torch::nn::Linear(7, 7));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (*breaks) throw UsageError("it breaks");
    return linear(x);
  }
  torch::nn::Linear linear{nullptr};
  std::shared_ptr<bool> breaks;
};
TORCH_MODULE(Brittle);

RANK_TEST(ModulePipeline, IsOfNoUseAfterAFailedStep, 2) {
  const Samples own(4, 0, {2, 6, 6});
  for (const int stage : {0, 1, 3}) {
    const auto breaks = std::make_shared<bool>(false);
    std::vector<NamedUnit> units = small_net();
    units[4] = unit("brittle", [=] { return Brittle(breaks); }, {7});
    ModulePipeline model(units, loss_sum, groups_over(rank, 1), doubles_at(stage));
    // A step for which no rank has a sample leaves nothing behind.
    EXPECT_THAT(usage_error_of([&] { model.train(own.x.narrow(0, 0, 0), own.y.narrow(0, 0, 0)); }),
                HasSubstr("no rank has a sample"));
    model.train(own.x, own.y);
    *breaks = true;
    EXPECT_THAT(usage_error_of([&] { model.train(own.x, own.y); }), HasSubstr("it breaks"));
    *breaks = false;
    const std::string again = "an earlier step of this ModulePipeline has failed";
    EXPECT_THAT(usage_error_of([&] { model.train(own.x, own.y); }), HasSubstr(again));
    EXPECT_THAT(usage_error_of([&] { model.evaluate(own.x, own.y); }), HasSubstr(again));
    EXPECT_THAT(usage_error_of([&] { static_cast<void>(model.clip_grad_norm(1)); }),
                HasSubstr(again));
  }
}

RANK_TEST(ModulePipeline, NamesTheUnitThatFails, 1) {
  const Samples own(4, 0, {2, 6, 6});
  std::vector<NamedUnit> units = small_net();
  units[1] = unit(
      "second", [] { return torch::nn::Sequential(torch::nn::ReLU(torch::nn::ReLUOptions(true))); },
      {4, 4, 4});
  const auto train = [&] {
    ModulePipeline model(units, loss_sum, groups_over(rank, 1), doubles_at(0));
    model.train(own.x, own.y);
  };
  EXPECT_THAT(usage_error_of(train),
              HasSubstr("unit 'second': a leaf Variable that requires grad"));
  units = small_net();
  units[3] = unit("fourth", [] { return dense(8, 7, 5); }, {7});
  EXPECT_THAT(usage_error_of(train), HasSubstr("unit 'fourth': mat1 and mat2 shapes"));
}

// Loading twice before the next call: memory that the first has freed may be used again.
RANK_TEST(ModulePipeline, TakesTheLastOfTwoLoads, 1) {
  ModulePipeline model(small_net(), loss_sum, groups_over(rank, 1), doubles_at(3));
  const Samples own(4, 0, {2, 6, 6});
  for (const double value : {0.25, 0.5}) {
    const torch::NoGradGuard no_grad;
    for (const auto& module : model.modules()) {
      for (auto& each : module->parameters()) {
        if (each.requires_grad())
          each.set_data(torch::full_like(torch::empty(each.sizes(), each.options()), value));
      }
    }
  }
  const SingleProcessNet alone;
  int trained = 0;
  model.each_value([&](const std::string& name, const torch::Tensor& value) {
    const auto found = alone.parameters.find(name);
    if (found == alone.parameters.end() || !found->second.requires_grad()) return;
    ++trained;
    EXPECT_TRUE(value.eq(0.5).all().item<bool>()) << name;
  });
  EXPECT_GT(trained, 0);
}

// A unit that cannot be made is told to every stage.
RANK_TEST(ModulePipeline, TellsEveryStageOfAUnitThatCannotBeMade, 2) {
  std::vector<NamedUnit> units = small_net();
  units.back() = unit(
      "unmade", []() -> torch::nn::Linear { throw std::runtime_error("no such file\nmore"); }, {7});
  EXPECT_THAT(usage_error_of([&] {
                const ModulePipeline model(units, loss_sum, groups_over(rank, 2), doubles_at(0));
              }),
              HasSubstr("a unit cannot be made: no such file"));
}

RANK_TEST(ModulePipeline, RefusesCallsOutOfPlace, 1) {
  EXPECT_THAT(usage_error_of([&] {
                const ModulePipeline model(small_net(), UnitLoss(), groups_over(rank, 1),
                                           doubles_at(0));
              }),
              HasSubstr("without a loss"));
  ModulePipeline model(small_net(), loss_sum, groups_over(rank, 1), doubles_at(0));
  EXPECT_THAT(usage_error_of([&] { static_cast<void>(model.clip_grad_norm(1)); }),
              HasSubstr("before the first train()"));
  // Nothing is lost by a batch that is none.
  const Samples own(4, 0, {2, 6, 6});
  EXPECT_THAT(usage_error_of([&] { model.train(own.x, own.y.narrow(0, 0, 3)); }),
              HasSubstr("not of the same number of samples"));
  EXPECT_GT(model.train(own.x, own.y), 0);
}

}  // namespace
}  // namespace troika::test
