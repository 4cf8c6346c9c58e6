#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>
#include <troika/plan/memory_advice.h>
#include <troika/plan/memory_plan.h>
#include <troika/plan/memory_report.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/simulate.h>
#include <troika/train/run.h>
#include <troika/train/tensor_memory.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

constexpr const char* kRecipe = R"(
name = "planned"
[model]
kind = "gpt"
layers = 8
dim = 256
heads = 4
ffn_dim = 512
vocab_size = 1024
seq_len = 64
tied_embeddings = false
[data]
kind = "random"
[train]
global_batch_size = 16
micro_batch_size = 2
precision = "fp32"
[optimizer]
kind = "adamw"
)";

Recipe loaded(const std::vector<std::string>& overrides = {}) {
  return parse_recipe(kRecipe, "recipe.toml", overrides).recipe;
}

Recipe resolved(int ranks, const std::vector<std::string>& overrides = {}) {
  return resolve_for_run(loaded(overrides), ranks);
}

HostMemory host_of(std::uint64_t bytes) {
  return {.bytes = bytes};
}

std::int64_t bytes_of_ranks(const std::vector<RankKind>& kinds, int first, int count) {
  return needs_of_ranks(kinds, first, count, {}).host;
}

std::int64_t max_host_bytes(const std::vector<RankKind>& kinds, int ranks, int ranks_per_node) {
  return most_needs(kinds, ranks, ranks_per_node, {}).host;
}

TEST(TensorMemory, CountsWhatIsAliveAndTheMostThatWas) {
  count_tensor_memory(at::kCPU);
  const TensorMemory before = tensor_memory(at::kCPU);
  at::Tensor tensor = at::empty({1 << 20}, at::kFloat);
  EXPECT_NEAR(tensor_memory(at::kCPU).live_bytes - before.live_bytes, 4 << 20, 8192);
  tensor.reset();
  EXPECT_EQ(tensor_memory(at::kCPU).live_bytes, before.live_bytes);
  EXPECT_GE(tensor_memory(at::kCPU).peak_bytes, before.live_bytes + (4 << 20));
  reset_peak(at::kCPU);
  EXPECT_EQ(tensor_memory(at::kCPU).peak_bytes, before.live_bytes);
}

// The table of docs/zero.md: bytes a parameter on one of 4 ranks, with one microbatch a step.
struct Storages {
  const char* precision;
  int stage;
  double values, gradients, masters, state;
};

void PrintTo(const Storages& row, std::ostream* out) {
  *out << row.precision << " at stage " << row.stage;
}

class ZeroStorages : public testing::TestWithParam<Storages> {};

TEST_P(ZeroStorages, AreThoseOfTheTable) {
  const Storages& row = GetParam();
  const MemoryPlan plan = predict_memory(
      resolved(4, {std::string("train.precision=") + row.precision, "train.micro_batch_size=4",
                   "parallel.zero_stage=" + std::to_string(row.stage)}),
      1);
  const double whole = 1024 * 256 * 2 + 8 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256;
  const auto near = [&](std::int64_t bytes, double each) {
    EXPECT_NEAR(static_cast<double>(bytes), each * whole, 0.05 * each * whole + 2 * 8 * 8192);
  };
  near(plan.values, row.values);
  near(plan.gradients, row.gradients);
  near(plan.masters, row.masters);
  near(plan.optimizer, row.state);
}

INSTANTIATE_TEST_SUITE_P(
    All, ZeroStorages,
    testing::Values(Storages{"bf16", 0, 2, 4, 4, 8}, Storages{"bf16", 1, 2, 4, 1, 2},
                    Storages{"bf16", 2, 2, 1, 1, 2}, Storages{"bf16", 3, 0.5, 1, 1, 2},
                    Storages{"fp32", 0, 0, 4, 4, 8}, Storages{"fp32", 1, 0, 4, 4, 2},
                    Storages{"fp32", 2, 0, 1, 4, 2}, Storages{"fp32", 3, 0, 1, 1, 2}));

// Of several microbatches each is cut: the shard is all that lasts, and buffers for three buckets.
TEST(MemoryPlan, CutsTheGradientsOfEachMicrobatch) {
  for (const int stage : {2, 3}) {
    const auto plan_with = [&](const std::string& samples, const std::string& cut) {
      return predict_memory(
          resolved(4, {"train.micro_batch_size=" + samples, "parallel.cut_gradients=" + cut,
                       "parallel.zero_stage=" + std::to_string(stage)}),
          1);
    };
    const MemoryPlan one = plan_with("4", "last_microbatch");
    const MemoryPlan whole = plan_with("1", "last_microbatch");
    const MemoryPlan cut = plan_with("1", "each_microbatch");
    EXPECT_NEAR(static_cast<double>(whole.gradients), 4.0 * static_cast<double>(cut.gradients),
                0.05 * static_cast<double>(whole.gradients) + 2 * 4 * 8192);
    EXPECT_EQ(cut.gradients, one.gradients);
    EXPECT_EQ(cut.buffers, one.buffers);
  }
}

TEST(MemoryPlan, KeepsAsManyActivationsAsTheSimulatorSays) {
  for (const std::string_view name : schedule_names()) {
    const int virtual_stages = name == "zb-v" || name == "interleaved-1f1b" ? 2 : 1;
    const Recipe recipe =
        resolved(2, {"parallel.pipeline=2", "parallel.pipeline_schedule=" + std::string(name),
                     "parallel.virtual_stages=" + std::to_string(virtual_stages),
                     "model.tied_embeddings=false"});
    const Schedule schedule = make_schedule(name, {2, virtual_stages, 8});
    const Simulation simulation = simulate(schedule, even_costs(schedule, {}));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(predict_memory(recipe, rank).peak_stage_activations,
                simulation.ranks[static_cast<std::size_t>(rank)].peak_stage_activations)
          << name << ", rank " << rank;
    }
  }
}

TEST(MemoryPlan, EachSavingSaves) {
  const auto activations = [](const std::vector<std::string>& overrides) {
    return predict_memory(resolved(1, overrides), 0).activations;
  };
  const std::int64_t plain = activations({});
  const std::int64_t selective = activations({"parallel.activation_checkpoint=selective"});
  const std::int64_t full = activations({"parallel.activation_checkpoint=full"});
  EXPECT_LT(selective, plain);
  EXPECT_LT(full * 3, selective);
  EXPECT_NEAR(static_cast<double>(activations({"train.micro_batch_size=4"})),
              2 * static_cast<double>(plain), 0.05 * static_cast<double>(plain));
}

// Of 64 samples here, whatever a step has.
TEST(MemoryPlan, EvaluatesItsOwnMicrobatches) {
  const std::vector<std::string> keys = {"train.evaluate_every_steps=1",
                                         "train.global_batch_size=8"};
  const auto plan_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), more.begin(), more.end());
    return predict_memory(resolved(4, all), 1);
  };
  const MemoryPlan small = plan_with({"train.micro_batch_size=2"});
  const MemoryPlan large = plan_with({"train.micro_batch_size=32"});
  EXPECT_GT(small.evaluation, small.storages());
  EXPECT_EQ(large.step(), small.step());
  EXPECT_GT(large.evaluation, small.evaluation + 14 * 64 * 512 * 4);  // 14 hidden layers more
  EXPECT_GE(large.peak(), large.evaluation);
}

TEST(MemoryPlan, CountsNoEvaluationThatIsNotMade) {
  EXPECT_EQ(predict_memory(resolved(1, {"train.evaluate_every_steps=0"}), 0).evaluation, 0);
  EXPECT_EQ(
      predict_memory(resolved(1, {"train.evaluate_every_steps=1", "data.held_out_fraction=0"}), 0)
          .evaluation,
      0);
}

TEST(MemoryPlan, CountsTheCopiesThatADumpTakes) {
  const auto saving = [](const std::string& dump_steps, int stage) {
    return predict_job(resolved(2, {"train.steps=4", "debug.dump_steps=" + dump_steps,
                                    "parallel.zero_stage=" + std::to_string(stage)}))
        .front()
        .plan.saving();
  };
  const std::int64_t whole =
      4 * (1024 * 256 * 2 + 8 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256);
  EXPECT_EQ(saving("[5]", 0), saving("[]", 0));  // past the end
  EXPECT_NEAR(static_cast<double>(saving("[2]", 0) - saving("[]", 0)), static_cast<double>(whole),
              0.02 * static_cast<double>(whole));
  EXPECT_NEAR(static_cast<double>(saving("[2]", 2) - saving("[]", 2)),
              static_cast<double>(whole) / 2, 0.02 * static_cast<double>(whole));
}

// At ZeRO stage 3 the rank with fewer samples passes its units as often as the others.
TEST(MemoryPlan, PadsWithEmptyMicrobatches) {
  const Recipe recipe = resolved(
      4, {"parallel.pipeline=2", "parallel.pipeline_schedule=gpipe", "parallel.zero_stage=3",
          "train.global_batch_size=5", "train.micro_batch_size=1"});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(predict_memory(recipe, rank).peak_stage_activations, 3) << rank;
  }
}

TEST(MemoryPlan, AllocatesNothingWhateverTheSize) {
  count_tensor_memory(at::kCPU);
  reset_peak(at::kCPU);
  const std::int64_t before = tensor_memory(at::kCPU).peak_bytes;
  const MemoryPlan plan =
      predict_memory(resolved(1, {"model.dim=1000000", "model.ffn_dim=1000000",
                                  "model.vocab_size=1000000", "model.heads=1000"}),
                     0);
  EXPECT_GT(plan.peak(), std::int64_t{1} << 45);
  EXPECT_LT(tensor_memory(at::kCPU).peak_bytes - before, 1 << 20);
}

TEST(MemoryPlan, KnowsEveryOperatorOfEveryModel) {
  for (const char* norm : {"rmsnorm", "layernorm"}) {
    for (const char* activation : {"swiglu", "gelu", "gelu_tanh"}) {
      for (const char* pack : {"concatenate", "isolated", "pad"}) {
        for (const int tensor : {1, 3}) {
          const Recipe recipe = resolved(
              3, {std::string("model.norm=") + norm, std::string("model.activation=") + activation,
                  "data.kind=text", "data.paths=[\"a\"]", std::string("data.pack=") + pack,
                  "parallel.tensor=" + std::to_string(tensor), "model.bias=true",
                  "model.position=learned", "model.dropout=0.1", "model.kv_heads=2"});
          for (int rank = 0; rank < 3; ++rank) EXPECT_GT(predict_memory(recipe, rank).peak(), 0);
        }
      }
    }
  }
  using Settings = std::vector<std::string>;
  for (const char* activation : {"relu", "gelu", "tanh"}) {
    for (const Settings& loss :
         {Settings{"model.loss=cross_entropy"}, Settings{"model.loss=mean_square"},
          Settings{"model.loss=cross_entropy", "loss.class_weights=[1, 2, 3, 4]"},
          Settings{"model.loss=cross_entropy", "loss.class_weights=[1, 2, 3, 4]",
                   "loss.label_smoothing=0.1", "train.precision=bf16"},
          Settings{"model.loss=binary_cross_entropy"},
          Settings{"model.loss=binary_cross_entropy", "loss.positive_weights=[1, 2, 3, 4]"}}) {
      Settings settings = loss;
      settings.push_back(std::string("model.activation=") + activation);
      const Recipe mlp = parse_recipe(R"(
name = "mlp"
[model]
kind = "mlp"
input_dim = 16
hidden_dims = [64, 64]
output_dim = 4
[data]
kind = "random"
)",
                                      "recipe.toml", settings)
                             .recipe;
      EXPECT_GT(predict_memory(resolve_for_run(mlp, 1), 0).peak(), 0);
    }
  }
}

TEST(MemoryPlan, EveryRankIsInOneKind) {
  const auto kinds = predict_job(
      resolved(8, {"parallel.pipeline=2", "parallel.tensor=2", "train.global_batch_size=5"}));
  std::vector<int> ranks;
  for (const RankKind& kind : kinds)
    ranks.insert(ranks.end(), kind.ranks.begin(), kind.ranks.end());
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  std::int64_t all = 0;
  for (int rank = 0; rank < 8; ++rank) all += bytes_of_ranks(kinds, rank, 1);
  EXPECT_EQ(bytes_of_ranks(kinds, 0, 8), all);
}

TEST(MemoryPlan, EndsWhenTheCallerWantsNoMore) {
  const Recipe recipe = resolved(8, {"parallel.pipeline=4"});
  int asked = 0;
  // First of what all have before any steps, then once more for each.
  const auto kinds = predict_job(recipe, TensorPlace::kHost, [&](const auto& so_far) {
    EXPECT_EQ(so_far.front().plan.activations > 0, asked > 0);
    EXPECT_GT(so_far.back().plan.storages(), 0);
    EXPECT_EQ(so_far.back().plan.activations, 0);
    return ++asked < 3;
  });
  EXPECT_EQ(asked, 3);
  ASSERT_EQ(kinds.size(), 8U);
  const auto all = predict_job(recipe);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(kinds[i].plan.storages(), all[i].plan.storages());
  }
}

TEST(MemoryAdvice, IsTheFirstChangeThatFits) {
  const Recipe recipe = loaded({"train.micro_batch_size=8"});
  const auto needs = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"train.micro_batch_size=8"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return static_cast<std::uint64_t>(bytes_of_ranks(predict_job(resolved(2, all)), 0, 2));
  };
  EXPECT_NO_THROW(check_memory_fits(recipe, 2, {0, 2}, host_of(needs({}))));
  const std::uint64_t selective = needs({"parallel.activation_checkpoint=selective"});
  EXPECT_THAT(memory_advice(recipe, 2, 2, host_of(selective)),
              HasSubstr("write activation_checkpoint = \"selective\""));
  EXPECT_THAT(memory_advice(recipe, 2, 2, host_of(selective - 1)),
              HasSubstr("write activation_checkpoint = \"full\""));
  try {
    check_memory_fits(recipe, 2, {0, 2}, host_of(1000));
    FAIL() << "it is to be refused";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of memory: ranks 0 to 1 need "));
    EXPECT_THAT(error.hint(), HasSubstr("start fewer ranks on a host"));
  }
  EXPECT_THAT(memory_advice(loaded({}), 1, 1, host_of(1000)), HasSubstr("a smaller model"));
}

// "write zero_stage = 3, data = 1: that needs 2 GiB" as overrides; none where it says something
// else.
std::vector<std::string> advised(const std::string& advice) {
  if (!advice.starts_with("write ")) return {};
  std::vector<std::string> overrides;
  std::istringstream changes(advice.substr(6, advice.find(": that needs ") - 6));
  for (std::string one; std::getline(changes, one, ',');) {
    std::erase(one, ' ');
    overrides.push_back((one.starts_with("micro_batch_size") ? "train." : "parallel.") + one);
  }
  return overrides;
}

// Nothing where the layout is refused: more tensor ranks than heads.
std::optional<std::int64_t> bytes_if_taken(const std::vector<std::string>& keys, int ranks,
                                           int ranks_per_node) {
  try {
    return max_host_bytes(predict_job(resolved(ranks, keys)), ranks, ranks_per_node);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// The least that a host needs, whatever is recomputed, cut or split: all of it is tried.
std::int64_t least_possible(const std::vector<std::string>& keys, int ranks, int ranks_per_node) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const auto try_with = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), overrides.begin(), overrides.end());
    least = std::min(least, bytes_if_taken(all, ranks, ranks_per_node).value_or(least));
  };
  for (int tensor = 1; tensor <= ranks; tensor *= 2) {
    for (int pipeline = 1; tensor * pipeline <= ranks; pipeline *= 2) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const char* kept : {"none", "full"}) {
          for (const char* cut : {"last_microbatch", "each_microbatch"}) {
            if (stage < 2 && *cut == 'e') continue;
            try_with({"parallel.tensor=" + std::to_string(tensor),
                      "parallel.pipeline=" + std::to_string(pipeline),
                      "parallel.data=" + std::to_string(ranks / tensor / pipeline),
                      "parallel.zero_stage=" + std::to_string(stage),
                      std::string("parallel.activation_checkpoint=") + kept,
                      std::string("parallel.cut_gradients=") + cut, "train.micro_batch_size=1"});
          }
        }
      }
    }
  }
  return least;
}

// Those of `keys` whose advice, from a little too little memory to far too little, has been
// followed: the recipe is taken, and fits.
std::set<std::string> followed_advice(const std::vector<std::string>& keys, int ranks,
                                      int ranks_per_node) {
  const auto bytes_with = [&](const std::vector<std::string>& overrides) {
    return max_host_bytes(predict_job(resolved(ranks, overrides)), ranks, ranks_per_node);
  };
  const auto now = static_cast<double>(bytes_with(keys));
  std::set<std::string> kinds;
  const std::int64_t least = least_possible(keys, ranks, ranks_per_node);
  for (const double part : {0.95, 0.7, 0.5, 0.3, 0.1}) {
    const auto limit = static_cast<std::uint64_t>(part * now);
    const std::string advice = memory_advice(loaded(keys), ranks, ranks_per_node, host_of(limit));
    if (ranks_per_node > 1 && static_cast<std::int64_t>(limit) <= ranks_per_node * kProcessBytes) {
      EXPECT_THAT(advice, testing::StartsWith("start fewer ranks on a host"));
      continue;
    }
    const std::vector<std::string> overrides = advised(advice);
    if (overrides.empty()) {
      EXPECT_THAT(advice, testing::StartsWith("use a smaller model"));
      EXPECT_THAT(advice, testing::EndsWith("needs " + bytes_text(least)));
      EXPECT_GT(least, static_cast<std::int64_t>(limit)) << advice;
      continue;
    }
    std::vector<std::string> changed = keys;
    changed.insert(changed.end(), overrides.begin(), overrides.end());
    const std::int64_t needed = bytes_with(changed);
    EXPECT_LE(needed, static_cast<std::int64_t>(limit)) << advice;
    EXPECT_THAT(advice, testing::EndsWith("needs " + bytes_text(needed)));
    kinds.insert(overrides.size() > 2 ? "several"
                                      : overrides.front().substr(0, overrides.front().find('=')));
  }
  return kinds;
}

TEST(MemoryAdvice, IsTakenAndFits) {
  const std::vector<std::string> large = {"model.dim=1024", "model.ffn_dim=4096", "model.layers=6"};
  const std::vector<std::string> full = {"train.micro_batch_size=1",
                                         "parallel.activation_checkpoint=full"};
  const auto with_all = [](std::vector<std::string> keys, const std::vector<std::string>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  };
  std::set<std::string> kinds;
  kinds.merge(followed_advice({"train.micro_batch_size=16", "model.seq_len=1024"}, 1, 1));
  kinds.merge(followed_advice(with_all(large, {"train.micro_batch_size=4"}), 4, 4));
  kinds.merge(followed_advice(with_all(large, full), 4, 2));
  kinds.merge(followed_advice(
      with_all(large, with_all(full, {"parallel.data=4", "parallel.zero_stage=3"})), 4, 1));
  kinds.merge(followed_advice(
      with_all(large, with_all(full, {"model.heads=1", "parallel.zero_stage=3"})), 2, 1));
  kinds.merge(followed_advice(
      with_all(large, with_all(full, {"parallel.zero_stage=2", "model.heads=1",
                                      "train.global_batch_size=4", "optimizer.kind=sgd"})),
      2, 1));
  EXPECT_THAT(kinds,
              testing::IsSupersetOf({"parallel.activation_checkpoint", "parallel.cut_gradients",
                                     "train.micro_batch_size", "parallel.zero_stage",
                                     "parallel.tensor", "parallel.pipeline"}));
}

TEST(MemoryAdvice, TakesRanksFromAFixedDataAxis) {
  const std::vector<std::string> keys = {"parallel.data=2", "parallel.zero_stage=3",
                                         "parallel.activation_checkpoint=full",
                                         "train.micro_batch_size=1"};
  std::vector<std::string> with_tensor = keys;
  with_tensor.front() = "parallel.data=1";
  with_tensor.emplace_back("parallel.tensor=2");
  const auto needs =
      static_cast<std::uint64_t>(bytes_of_ranks(predict_job(resolved(2, with_tensor)), 0, 2));
  const auto now = static_cast<std::uint64_t>(bytes_of_ranks(predict_job(resolved(2, keys)), 0, 2));
  ASSERT_LT(needs, now);
  EXPECT_THAT(memory_advice(loaded(keys), 2, 2, host_of(needs)),
              HasSubstr("write tensor = 2, data = 1"));
}

// Of which kernels take scratch memory for each.
TEST(PredictedMemory, HasTheThreadsOfARank) {
  ::unsetenv("OMP_NUM_THREADS");
  const int before = at::get_num_threads(), cores = usable_cores();
  {
    const ScopedRankThreads threads(2);
    EXPECT_EQ(at::get_num_threads(), std::max(1, cores / 2));
  }
  EXPECT_EQ(at::get_num_threads(), before);
  {
    const ScopedRankThreads threads(1000);
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  ::setenv("OMP_NUM_THREADS", "3", 1);
  {
    const ScopedRankThreads threads(1000);
    EXPECT_EQ(at::get_num_threads(), before);
  }
  ::unsetenv("OMP_NUM_THREADS");
}

TEST(MemoryAdvice, IsForTheHostThatNeedsTheMost) {
  const std::vector<std::string> keys = {"parallel.pipeline=2", "model.vocab_size=20000"};
  const auto kinds = predict_job(resolved(2, keys));
  const std::int64_t most = max_host_bytes(kinds, 2, 1);
  EXPECT_EQ(most, std::max(bytes_of_ranks(kinds, 0, 1), bytes_of_ranks(kinds, 1, 1)));
  EXPECT_NE(bytes_of_ranks(kinds, 0, 1), bytes_of_ranks(kinds, 1, 1));
  const auto least = std::min(bytes_of_ranks(kinds, 0, 1), bytes_of_ranks(kinds, 1, 1));
  const auto advice_for = [&](std::int64_t host_bytes) {
    return memory_advice(loaded(keys), 2, 1, host_of(static_cast<std::uint64_t>(host_bytes)));
  };
  // The other host needs no change at all: embedding and layers of this one are what is too much.
  EXPECT_THAT(advice_for(least),
              testing::StartsWith("use a smaller model or seq_len, or more hosts: even "
                                  "activation_checkpoint = \"full\", micro_batch_size = 1 "
                                  "needs "));
  std::vector<std::string> selective = keys;
  selective.emplace_back("parallel.activation_checkpoint=selective");
  const std::int64_t needed = max_host_bytes(predict_job(resolved(2, selective)), 2, 1);
  EXPECT_GT(needed, least);
  EXPECT_THAT(advice_for(needed),
              testing::StartsWith("write activation_checkpoint = \"selective\": "));
}

}  // namespace
}  // namespace troika
