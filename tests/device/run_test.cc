// A whole run on the test device, as `troika train` does it: metrics, dumps and the saved model are
// the host's, and the device's memory is in the last line.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/file.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <nlohmann/json.hpp>

#include <sstream>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/layouts.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

using nlohmann::json;

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

json train_on(const std::string& device, Rank& rank, const std::string& name = "") {
  Recipe recipe = gpt_recipe();
  recipe.name = name.empty() ? device : name;
  recipe.runs_dir = rank.folder().string();
  recipe.train.device = device;
  recipe.train.steps = 4;
  recipe.train.evaluate_every_steps = 2;
  recipe.train.best_metric = "loss";
  recipe.debug.dump_steps = {2};
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.parallel.zero_stage = 2;
  RunOptions options;
  const RunReport report = run_training(recipe, world_of(rank, device), options);
  return report.json.empty() ? json() : json::parse(report.json);
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
    EXPECT_EQ(each["device"], "hpu:" + std::to_string(each["rank"].get<int>()));
  }
}

// The first rank's device holds a tenth of what it needs: the others hear of it.
RANK_TEST(DeviceRun, NamesTheDeviceThatIsOutOfMemory, 2) {
  const LimitDeviceMemory little(rank.index() == 0 ? 100'000 : kDefaultCapacity);
  try {
    train_on("hpu", rank, "large");
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("hpu:0 is out of memory"));
    if (rank.index() != 0) return;
    EXPECT_THAT(error.hint(), testing::HasSubstr("micro_batch_size"));
  }
}

}  // namespace
}  // namespace troika::test
