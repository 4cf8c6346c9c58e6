// Text from a model that lives on the test device: that of the host.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/inference/generate.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

// Trains for a few steps on a text, on `device`; returns the run's folder.
std::filesystem::path trained_on(const std::string& device, Rank& rank) {
  const std::filesystem::path text = rank.folder() / "text.txt";
  std::ofstream stream(text);
  for (int i = 0; i < 400; ++i) stream << "line " << i << " of a text\n";
  stream.close();
  const std::string toml = R"(
[model]
kind = "gpt"
layers = 2
dim = 16
heads = 2
ffn_dim = 20
vocab_size = 256
seq_len = 9
[data]
kind = "text"
[train]
steps = 3
global_batch_size = 4
precision = "fp32"
)";
  const std::vector<std::string> overrides = {
      "name=" + device, "runs_dir=" + rank.folder().string(),
      "data.paths=[\"" + text.string() + "\"]", "train.device=" + device};
  const Recipe recipe = parse_recipe(toml, "recipe", overrides).recipe;
  (void)run_training(recipe, world_of(rank, device), RunOptions());
  return run_folder(recipe);
}

std::string text_of(const Generator& generator) {
  std::string text;
  SamplingOptions sampling;
  sampling.tokens = 20;
  generator.generate("line ", sampling, [&](std::string_view piece) { text += piece; });
  return text;
}

std::string error_of_generator(const std::filesystem::path& run, const std::string& device) {
  try {
    const Generator generator(run, "", device);
  } catch (const UsageError& error) {
    return std::string(error.what()) + "\n" + error.hint();
  }
  return "";
}

RANK_TEST(DeviceGenerator, WritesWhatTheHostWrites, 1) {
  const ExpectNoDeviceFault no_fault;
  const std::filesystem::path run = trained_on("hpu:1", rank);
  const std::string expected = text_of(Generator(run, "", "cpu"));
  EXPECT_THAT(expected, testing::StartsWith("line "));
  const DeviceCounters before = device_counters();
  EXPECT_EQ(text_of(Generator(run)), expected);  // where the run was trained
  EXPECT_GT((device_counters() - before).kernels, 100);
  EXPECT_EQ(text_of(Generator(run, "", "hpu")), expected);
}

RANK_TEST(DeviceGenerator, NamesADeviceThatFails, 1) {
  const Generator generator(trained_on("hpu", rank));
  const FailDevice failure(50);
  try {
    (void)text_of(generator);
    ADD_FAILURE() << "nothing has failed";
  } catch (const RankDiedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("hpu:0 has failed"));
  }
}

RANK_TEST(DeviceGenerator, RefusesADeviceThatIsNotThere, 1) {
  const std::filesystem::path run = trained_on("cpu", rank);
  EXPECT_THAT(error_of_generator(run, "hpu:4"),
              HasSubstr("--device hpu:4: there are 4 hpu devices, counted from 0"));
  EXPECT_THAT(
      error_of_generator(run, "xpu"),
      HasSubstr("--device xpu: this process has no xpu device\n`troika doctor` says what is "
                "there; --device cpu does without"));
}

}  // namespace
}  // namespace troika::test
