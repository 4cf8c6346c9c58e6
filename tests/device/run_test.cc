// A whole run on the test device, as `troika train` does it: metrics, dumps and the saved model are
// the host's, and the device's memory is in the last line.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <sstream>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/layouts.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::istringstream text(read_file(file, 1 << 20));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

void expect_near(const std::filesystem::path& found, const std::filesystem::path& expected) {
  const std::vector<NamedTensor> a = load_tensors(found), b = load_tensors(expected);
  ASSERT_EQ(a.size(), b.size()) << found;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(a[i].tensor.allclose(b[i].tensor, 1e-11, 1e-12)) << found << " " << a[i].name;
  }
}

Recipe run_recipe(const std::string& device, const std::string& name) {
  Recipe recipe = gpt_recipe();
  recipe.name = name;
  recipe.train.device = device;
  recipe.train.steps = 4;
  recipe.train.evaluate_every_steps = 2;
  recipe.train.best_metric = "loss";
  recipe.debug.dump_steps = {2};
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.parallel.zero_stage = 2;
  return recipe;
}

json train(Recipe recipe, Rank& rank) {
  recipe.runs_dir = rank.folder().string();
  const RunReport report = run_training(recipe, world_of(rank, recipe.name), RunOptions());
  return report.json.empty() ? json() : json::parse(report.json);
}

json train_on(const std::string& device, Rank& rank) {
  return train(run_recipe(device, device), rank);
}

// The error of a run that has to fail.
Error error_of(const Recipe& recipe, Rank& rank) {
  try {
    train(recipe, rank);
  } catch (const Error& error) {
    return error;
  }
  return {ExitCode::kDone, "no error", ""};
}

RANK_TEST(DeviceRun, IsTheHosts, 1, 2) {
  const ExpectNoDeviceFault no_fault;
  train_on("cpu", rank);
  const json summary = train_on("hpu", rank);
  if (rank.index() != 0) return;
  const std::filesystem::path host = rank.folder() / "cpu", device = rank.folder() / "hpu";
  const auto expected = lines_of(host / "metrics.jsonl"),
             found = lines_of(device / "metrics.jsonl");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_GT(found[i]["device_peak_bytes"].get<double>(), 10000);
    EXPECT_GE(found[i]["device_reserved_bytes"], found[i]["device_peak_bytes"]);
    EXPECT_FALSE(expected[i].contains("device_peak_bytes"));
    for (const char* key : {"step", "loss", "grad_norm", "held_out_loss", "tokens"}) {
      ASSERT_EQ(found[i].contains(key), expected[i].contains(key)) << key;
      if (!found[i].contains(key)) continue;
      EXPECT_NEAR(found[i][key].get<double>(), expected[i][key].get<double>(), 1e-10) << key;
    }
  }
  for (const char* file : {"model.safetensors", "best.safetensors"}) {
    expect_near(device / file, host / file);
  }
  int dumps = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(host / "dump")) {
    if (!entry.is_regular_file()) continue;
    expect_near(device / std::filesystem::relative(entry.path(), host), entry.path());
    ++dumps;
  }
  EXPECT_EQ(dumps, 3);
  for (const json& each : summary["ranks"]) {
    EXPECT_GT(each["peak_tensor_bytes"].get<std::int64_t>(), 10000);
    EXPECT_GE(each["peak_reserved_bytes"], each["peak_tensor_bytes"]);
    EXPECT_EQ(each["device"], "hpu:" + std::to_string(each["rank"].get<int>()));
  }
}

// The first rank's device holds the model, and the matrices that the device's rate is measured
// with, but not a microbatch: the others hear of it.
RANK_TEST(DeviceRun, NamesTheDeviceThatIsOutOfMemory, 2) {
  const LimitDeviceMemory little(rank.index() == 0 ? 8'000'000 : kDefaultCapacity);
  Recipe recipe = run_recipe("hpu", "large");
  recipe.train.global_batch_size = 4096;
  recipe.train.micro_batch_size = 2048;
  const Error error = error_of(recipe, rank);
  EXPECT_THAT(error.what(), HasSubstr("hpu:0 is out of memory"));
  EXPECT_THAT(error.what(), testing::Not(HasSubstr("hold 0 B")));
  if (rank.index() != 0) return;
  EXPECT_THAT(error.hint(), HasSubstr("micro_batch_size"));
}

// A resnet has no plan before it is built: what its optimiser keeps is refused before it is there.
RANK_TEST(DeviceRun, RefusesAnOptimiserWhoseStateDoesNotFit, 2) {
  Recipe recipe = resnet_recipe();
  recipe.model.as<ResnetOptions>().width = 256;
  recipe.name = "state";
  recipe.train.device = "hpu";
  recipe.train.steps = 1;
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("adamw");
  // Values and gradients take 19 MB, and so would the state.
  const LimitDeviceMemory little(rank.index() == 0 ? 32'000'000 : kDefaultCapacity);
  const Error error = error_of(recipe, rank);
  EXPECT_THAT(error.what(), HasSubstr("out of memory: the state of adamw needs"));
  EXPECT_THAT(error.what(), HasSubstr("of hpu:0, which has"));
}

// Wherever in the run that is: at its first kernel, in a step, an evaluation, a dump, or while the
// model is gathered to be saved. The second rank's device fails, and the first hears of it.
RANK_TEST(DeviceRun, NamesTheDeviceThatFails, 2) {
  const DeviceCounters before = device_counters();
  train_on("hpu", rank);
  const std::int64_t all = (device_counters() - before).kernels;
  for (const std::int64_t percent : {0, 2, 5, 10, 20, 35, 50, 65, 80, 90, 95, 99}) {
    const std::string where = "fails-at-" + std::to_string(percent);
    std::optional<FailDevice> failure;
    if (rank.index() == 1) failure.emplace(1 + all * percent / 100, 1);
    const Error error = error_of(run_recipe("hpu", where), rank);
    EXPECT_THAT(error.what(),
                HasSubstr("hpu:1 has failed: an illegal memory access was encountered"))
        << where;
    if (rank.index() == 0) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1")) << where;
    } else {
      EXPECT_EQ(error.code(), ExitCode::kRankDied) << where;
      EXPECT_THAT(error.hint(), HasSubstr("log of the device's driver")) << where;
    }
  }
}

RANK_TEST(DeviceRun, RefusesMoreRanksThanDevices, 5) {
  const Error error = error_of(run_recipe("hpu", "crowded"), rank);
  EXPECT_STREQ(error.what(), "train.device = \"hpu\": 5 ranks on this host, and 4 hpu devices");
  EXPECT_EQ(error.hint(), "start 4 ranks a host, or write train.device = \"hpu:0\" to share one");
  EXPECT_EQ(error.code(), ExitCode::kUsage);
}

// The test device does not say that it multiplies bf16.
RANK_TEST(DeviceRun, TakesItsPrecisionFromTheDevice, 1) {
  Recipe recipe = run_recipe("hpu", "auto");
  recipe.train.precision = Precision::kAuto;
  EXPECT_EQ(resolve_for_run(recipe, 1).train.precision, Precision::kFloat32);
}

RANK_TEST(DeviceRun, ComputesAsTheRecipeSays, 1) {
  at::Context& context = at::globalContext();
  train_on("hpu", rank);
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_FALSE(context.allowTF32CuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.deterministicAlgorithms());

  Recipe fast = run_recipe("hpu", "fast");
  fast.train.tf32 = fast.train.cudnn_benchmark = true;
  train(fast, rank);
  EXPECT_TRUE(context.allowTF32CuBLAS());
  EXPECT_TRUE(context.allowTF32CuDNN());
  EXPECT_TRUE(context.benchmarkCuDNN());

  Recipe same = run_recipe("hpu", "same");
  same.train.deterministic = true;
  train(same, rank);
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
}

RANK_TEST(DeviceRun, LeavesTheHostAsItIs, 1) {
  Recipe recipe = run_recipe("cpu", "host");
  recipe.train.tf32 = recipe.train.deterministic = true;
  train(recipe, rank);
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

}  // namespace
}  // namespace troika::test
