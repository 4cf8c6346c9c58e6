// Compression between hosts alone: inside a host gradients are summed as they are. The hosts are
// pretended.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>
#include <troika/data/sources/random/random.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/resolve.h>
#include <troika/sync/local_sync.h>
#include <troika/train/trainer.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ranks/comm_meter.h"
#include "ranks/compressed.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

constexpr int kBuckets = 3;

at::Tensor sum_of(const std::vector<int>& ranks, int step, at::ScalarType type, int bucket) {
  at::Tensor sum = at::zeros({kElements}, type);
  for (const int rank : ranks) sum += gradients_of(rank, step, type, bucket);
  return sum;
}

GradientBucket bucket_of(int index, const at::Tensor& values, const Group& group) {
  return {index, values, &group, Rank::call("bucket"), bucket_parts()};
}

// All buckets, as a step does it: each is started as it is ready, and all are finished at its end.
void average(BucketHook& hook, const std::vector<int>& buckets,
             const std::vector<at::Tensor>& values, const Group& group, bool applied = true) {
  std::vector<Work> works;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    works.push_back(hook.start(bucket_of(buckets[i], values[i], group)));
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    works[i].wait();
    hook.finish(bucket_of(buckets[i], values[i], group));
  }
  hook.end_step(applied);
}

// Four ranks, of which 0 and 2 share a host, and 1 and 3: rank 2 p + h is at place p of host h. The
// reference averages the sums of hosts between the two ranks that a bucket belongs to.
RANK_FUNCTION(averages_between_two_hosts) {
  const Group group = rank.group();
  const int host = rank.index() % 2, place = rank.index() / 2;
  const Group owners = make_group("owners", {2 * place, 2 * place + 1}, host, rank.options());
  std::vector<int> all(kBuckets), own;
  for (int i = 0; i < kBuckets; ++i) {
    all[static_cast<std::size_t>(i)] = i;
    if (i % 2 == place) own.push_back(i);
  }
  for (const TestedCompressor& kind : tested_compressors()) {
    const Hook hook = between_hosts(kind.make()), reference = kind.make();
    for (int step = 0; step < 4; ++step) {
      const bool applied = step != 2;  // which leaves no trace
      std::vector<at::Tensor> found, expected;
      for (const int i : all) found.push_back(gradients_of(rank.index(), step, at::kFloat, i));
      for (const int i : own) expected.push_back(sum_of({host, host + 2}, step, at::kFloat, i));
      average(*hook, all, found, group, applied);
      average(*reference, own, expected, owners, applied);
      for (const int i : all) {
        const at::Tensor& values = found[static_cast<std::size_t>(i)];
        const at::Tensor of_owner = values.clone();
        group.broadcast(of_owner, 2 * (i % 2), Rank::call("owner")).wait();
        EXPECT_TRUE(values.equal(of_owner)) << kind.name << ", bucket " << i;
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        const at::Tensor& values = found[static_cast<std::size_t>(own[i])];
        // Of the mean of two sums over two ranks each.
        EXPECT_TRUE(values.equal(expected[i] / 2)) << kind.name << ", bucket " << own[i];
      }
    }
    for (const int i : all) {
      const at::Tensor like = at::zeros({kElements});
      const BucketMemory* const memory = hook->memory(bucket_of(i, like, group));
      EXPECT_EQ(memory != nullptr, i % 2 == place) << "bucket " << i;
      if (memory == nullptr || kind.name == "qsgd") continue;
      const at::Tensor error = reference->memory(bucket_of(i, like, owners))->error;
      EXPECT_TRUE(memory->error.equal(error)) << kind.name << ", bucket " << i;
    }
  }
}

TEST(CompressBetweenHosts, IsTheAverageOfWhatHostsHave) {
  expect_ranks("averages_between_two_hosts", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

// Hosts need not have equally many ranks.
RANK_FUNCTION(averages_everything) {
  const Group group = rank.group();
  std::vector<int> buckets(kBuckets), ranks;
  for (int i = 0; i < kBuckets; ++i) buckets[static_cast<std::size_t>(i)] = i;
  for (int i = 0; i < rank.size(); ++i) ranks.push_back(i);
  const PowerSgd full{.rank = kColumns, .small = PowerSgd::Small::kFactorised};
  for (const Hook& inner : {keep_top_k(1), keep_random_k(1), compress_by_power_sgd(full)}) {
    const Hook hook = between_hosts(inner);
    for (int step = 0; step < 3; ++step) {
      std::vector<at::Tensor> found;
      for (const int i : buckets) found.push_back(gradients_of(rank.index(), step, at::kDouble, i));
      average(*hook, buckets, found, group);
      for (const int i : buckets) {
        const at::Tensor expected = sum_of(ranks, step, at::kDouble, i) / rank.size();
        const at::Tensor& values = found[static_cast<std::size_t>(i)];
        EXPECT_LT((values - expected).abs().max().item<double>(), 1e-10) << step;
      }
    }
  }
}

TEST(CompressBetweenHosts, AverageEverythingOnUnevenHosts) {
  expect_ranks("averages_everything", 3, {.pretend = Pretend::kOneAloneAndTheRest});
  expect_ranks("averages_everything", 4, {.pretend = Pretend::kThreeHostsInTurn});
}

// Between two hosts both an all-reduce and an all-gather send what the formula says, once a host.
RANK_FUNCTION(sends_between_two_hosts) {
  const Meter meter(rank);
  const Group& group = meter.group();
  group.barrier(Rank::call("warm-up")).wait();
  const auto recorded = [&] {
    return read_recorder(recorder_path(rank.folder(), rank.index())).operations;
  };
  for (const TestedCompressor& kind : tested_compressors()) {
    const Hook hook = between_hosts(kind.make());
    const auto before = recorded().back().sequence;
    const at::Tensor values = gradients_of(rank.index(), 0, at::kFloat);
    average(*hook, {0}, {values}, group);
    std::uint64_t sent = 0;
    for (const RecordedOperation& operation : recorded()) {
      if (operation.sequence <= before) continue;
      EXPECT_TRUE(operation.axis == "data between hosts" || operation.axis == "data in host")
          << operation.axis;
      if (operation.axis == "data between hosts") sent += operation.sent;
    }
    EXPECT_EQ(sent, static_cast<std::uint64_t>(rank.index() < 2 ? kind.bytes : 0)) << kind.name;
  }
}

TEST(CompressBetweenHosts, SendsWhatItsFormulaSays) {
  expect_ranks("sends_between_two_hosts", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

RANK_FUNCTION(shares_one_host) {
  const Group group = rank.group();
  EXPECT_EQ(group.by_host().hosts, 1);
  EXPECT_FALSE(between_hosts(round_to_bf16())->applies_to(group));
  EXPECT_TRUE(round_to_bf16()->applies_to(group));
}

TEST(CompressBetweenHosts, DoesNothingOnOneHost) {
  expect_ranks("shares_one_host", 2);
}

// A small model, compressed between hosts.
Recipe recipe_with(const std::string& kind) {
  Recipe recipe;
  recipe.name = "small";
  recipe.model = ModelOptions(mlp_kind(), MlpOptions{6, {8, 5}, 3, ActivationFunction::kTanh});
  recipe.data = DataOptions(random_kind(), RandomOptions{0});
  recipe.train.global_batch_size = 8;
  recipe.train.micro_batch_size = 2;
  recipe.train.precision = Precision::kFloat64;
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.warmup_steps = 0;
  recipe.compress = Chosen<CompressKind>::named(kind);
  for (const Key& key : recipe.compress.kind().keys()) {
    if (key.name != "only") continue;
    std::get<ChoiceSpec>(key.spec).write(recipe.compress.options().data(),
                                         static_cast<int>(CompressOnly::kBetweenHosts));
  }
  return recipe;
}

// A run that goes on from its state: the same losses as one that was never stopped.
RANK_FUNCTION(goes_on_between_hosts) {
  const Recipe recipe = resolve_recipe(recipe_with(rank.argument("kind")), rank.size());
  const std::shared_ptr<const Dataset> data =
      open_dataset(recipe.data, traits_of(recipe.model).sample, 1);
  TrainerContext context;
  context.groups.world = context.groups.data = context.groups.shard = rank.group();
  Trainer whole(recipe, data, context);
  std::map<std::string, at::Tensor> saved;
  StateDict numbers;
  std::vector<double> expected;
  for (int step = 0; step < 8; ++step) {
    if (step == 4) {
      const StateDict state = whole.state();
      for (const StateTensor& each : state.tensors()) saved[each.name] = each.tensor.clone();
      for (const auto& [name, value] : state.numbers()) numbers.set(name, value);
    }
    const double loss = whole.step().loss;
    if (step >= 4) expected.push_back(loss);
  }
  // A file has what any rank has written.
  const auto has = [&](const std::string& name) {
    if (saved.contains(name)) return true;
    return name.starts_with("replica.") && name < "replica.2" &&
           saved.contains(name.substr(std::string("replica.0.").size()));
  };
  Trainer resumed(recipe, data, context);
  const StateDict places = resumed.places(has);
  int errors = 0;
  for (const StateTensor& each : places.tensors()) {
    at::Tensor(each.tensor).copy_(saved.at(each.name));
    errors += each.name.find("compress.error") != std::string::npos ? 1 : 0;
  }
  rank.report("errors", std::to_string(errors));
  resumed.restore(numbers);
  std::vector<double> found;
  for (int step = 4; step < 8; ++step) found.push_back(resumed.step().loss);
  EXPECT_EQ(found, expected);
}

TEST(CompressBetweenHosts, GoesOnFromAState) {
  for (const std::string kind : {"int8", "power_sgd", "top_k"}) {
    const auto results =
        expect_ranks("goes_on_between_hosts", 4,
                     {.arguments = {{"kind", kind}}, .pretend = Pretend::kTwoHostsInTurn});
    int errors = 0;
    for (const RankResult& result : results) errors += std::stoi(result.values.at("errors"));
    EXPECT_EQ(errors, 2 * 6) << kind;  // each of three layers' two parameters, on each host
  }
}

// What islands exchange all goes between hosts where each is on a host of its own.
RANK_FUNCTION(exchanges_between_islands) {
  Recipe recipe = recipe_with("int8");
  recipe.sync = Chosen<SyncKind>::named("local");
  recipe.sync.as<LocalOptions>().island = 1;
  recipe.sync.as<LocalOptions>().every_steps = 2;
  recipe = resolve_recipe(recipe, rank.size());
  const std::shared_ptr<const Dataset> data =
      open_dataset(recipe.data, traits_of(recipe.model).sample, 1);
  TrainerContext context;
  context.groups.world = context.groups.islands = rank.group();
  if (context.groups.islands.by_host().hosts < rank.size()) {
    EXPECT_THROW(Trainer(recipe, data, context), UsageError);
    return;
  }
  Trainer trainer(recipe, data, context);
  for (int step = 0; step < 4; ++step) EXPECT_TRUE(std::isfinite(trainer.step().loss));
  const StateDict state = trainer.model_state();
  for (const StateTensor& each : state.tensors()) {
    const at::Tensor of_first = each.tensor.clone();
    rank.group().broadcast(of_first, 0, Rank::call("first")).wait();
    EXPECT_TRUE(of_first.equal(each.tensor)) << each.name;
  }
}

TEST(CompressBetweenHosts, IslandsThatShareAHostAreRefused) {
  expect_ranks("exchanges_between_islands", 2, {.pretend = Pretend::kTwoHostsInTurn});
  expect_ranks("exchanges_between_islands", 4, {.pretend = Pretend::kTwoHostsInTurn});
}

}  // namespace
}  // namespace troika::test
