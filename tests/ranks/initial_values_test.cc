// A model starts from values that another training has saved, on any layout.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/initial_values.h>

#include <filesystem>
#include <fstream>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

struct Model {
  Model(const Recipe& recipe, const Layout& layout, const Rank& rank)
      : resolved(laid_out(recipe, layout, rank)),
        context(context_of(resolved, layout, rank)),
        trainer(resolved, open_dataset(resolved.data, traits_of(resolved.model).sample, 1),
                context) {}

  // Whole on rank 0 of the model's ranks, none elsewhere.
  std::vector<NamedTensor> whole() {
    const StateDict state = trainer.model_state();
    const StateGatherer gatherer(context.groups.world, trainer.model_specs(), state.tensors(),
                                 Seconds(60));
    std::vector<at::Tensor> values;
    for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
    return gatherer.gather(values, "model");
  }

  void begin_from(const InitialValueOptions& from) {
    InitialValues values(from, trainer.model());
    const ReplicatedRead read(context.groups.world, values.wanted(), Seconds(60));
    read.read([&](const StateTensor& part) { values.read(part); });
    read.share();
    trainer.adopt_values();
  }

  Recipe resolved;
  TrainerContext context;
  Trainer trainer;
};

// Collective: the checkpoint of a step, a file a rank.
void save_checkpoint(Model& model, const CheckpointFolder& folder, std::int64_t step, Rank& rank) {
  std::filesystem::create_directories(folder.step_folder(step));
  rank.wait_for_all("the folder of a checkpoint");
  StateWriter writer;
  writer.begin(model.trainer.state(), folder.step_folder(step),
               std::to_string(rank.index()) + ".safetensors");
  const Session session = Session::on(model.context.groups.world);
  Manifest manifest;
  manifest.step = step;
  for (const std::string& text : session.gather(format_report(writer.wait()), "reports")) {
    ShardReport report = parse_report(text, "report");
    manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
    manifest.shards.push_back(std::move(report.shard));
  }
  if (rank.index() == 0) folder.commit(manifest);
  rank.wait_for_all("a checkpoint");
}

Recipe of_another_seed(Recipe recipe) {
  recipe.seed = 99;
  return recipe;
}

// A model whose values are not those that are drawn, in a file that all ranks see.
std::filesystem::path saved_model(const Recipe& recipe, Rank& rank) {
  const std::filesystem::path path = rank.folder() / "model.safetensors";
  if (rank.index() == 0) {
    Model model(of_another_seed(recipe), {.alone = true}, rank);
    (void)model.trainer.step();
    save_tensors(path, model.whole());
  }
  rank.wait_for_all("saved");
  return path;
}

void expect_values_of(const std::filesystem::path& file, const std::vector<NamedTensor>& whole) {
  if (whole.empty()) return;
  const std::vector<NamedTensor> expected = load_tensors(file);
  ASSERT_EQ(whole.size(), expected.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].name, expected[i].name);
    EXPECT_TRUE(whole[i].tensor.equal(expected[i].tensor)) << whole[i].name;
  }
}

RANK_TEST(InitialValues, AreThoseOfAFileOnEveryLayout, 1, 2) {
  for (const Recipe& recipe : {gpt_recipe(), resnet_recipe()}) {
    const std::filesystem::path file = saved_model(recipe, rank);
    std::vector<Layout> layouts = {{}, {.zero_stage = 1}, {.zero_stage = 3}};
    if (rank.size() > 1) layouts.push_back({.pipeline = 2});
    if (rank.size() > 1 && recipe.model.holds<GptOptions>()) layouts.push_back({.tensor = 2});
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(i);
      Model model(recipe, layouts[i], rank);
      model.begin_from({.path = file.string(), .rename = {}, .ignore = {}});
      expect_values_of(file, model.whole());
      // The working weights have them, too: the loss is that of the model alone.
      Model alone(recipe, {.alone = true}, rank);
      alone.begin_from({.path = file.string(), .rename = {}, .ignore = {}});
      EXPECT_NEAR(model.trainer.step().loss, alone.trainer.step().loss, 1e-9);
    }
    rank.wait_for_all("read " + std::string(recipe.model.name()));
  }
}

RANK_TEST(InitialValues, MayBeTakenInPart, 2) {
  const std::filesystem::path file = saved_model(resnet_recipe(), rank);
  Recipe other = resnet_recipe();
  other.model.as<ResnetOptions>().classes = 5;
  for (const Layout& layout : {Layout{.zero_stage = 3}, Layout{.pipeline = 2}}) {
    Model drawn(other, layout, rank), model(other, layout, rank);
    try {
      model.begin_from({.path = file.string(), .rename = {}, .ignore = {}});
      ADD_FAILURE() << "another number of classes was taken in";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("'fc.bias' ([3] there, [5] here)"),
                std::string::npos)
          << error.what();
    }
    model.begin_from({.path = file.string(), .rename = {}, .ignore = {"fc.*"}});
    const std::vector<NamedTensor> before = drawn.whole(), found = model.whole();
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool is_head = found[i].name.starts_with("fc.");
      if (is_head) {
        EXPECT_TRUE(found[i].tensor.equal(before[i].tensor)) << found[i].name;
      }
      if (found[i].name == "conv1.weight") {
        EXPECT_FALSE(found[i].tensor.equal(before[i].tensor));
      }
    }
  }
}

// Each rank is a host of its own here: it has a copy of the file, and the last rank's is not the
// same.
std::filesystem::path own_copy(const std::filesystem::path& from, const Rank& rank) {
  const std::filesystem::path to =
      rank.folder() / ("host-" + std::to_string(rank.index())) / from.filename();
  std::filesystem::remove_all(to.parent_path());
  std::filesystem::create_directories(to.parent_path());
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  return to;
}

void flip_last_bit(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get() ^ 1);
  stream.seekp(-1, std::ios::end);
  stream.put(last);
}

std::string refusal(const std::filesystem::path& file, const Recipe& recipe, const Layout& layout,
                    const Rank& rank) {
  Model model(recipe, layout, rank);
  std::filesystem::current_path(file.parent_path());
  try {
    take_initial_values({.path = file.filename().string(), .rename = {}, .ignore = {}},
                        Session::on(model.context.groups.world), Seconds(60), model.trainer);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

RANK_TEST(InitialValues, OfAnotherFileAreRefusedOnEveryLayout, 2) {
  const std::filesystem::path file = saved_model(gpt_recipe(), rank);
  const std::string last = SafetensorsFile(file).entries().back().name;
  for (const Layout& layout :
       {Layout{}, Layout{.zero_stage = 3}, Layout{.pipeline = 2}, Layout{.tensor = 2}}) {
    const std::filesystem::path own = own_copy(file, rank);
    EXPECT_EQ(refusal(own, gpt_recipe(), layout, rank), "");
    if (rank.index() == 1) flip_last_bit(own);
    rank.wait_for_all("another bit");
    EXPECT_EQ(
        refusal(own, gpt_recipe(), layout, rank),
        "[model] from 'model.safetensors' differs between rank 0 and rank 1, first in tensor '" +
            last + "'");
  }
}

// The manifests are the same: the SHA-256 of what a host reads there tells.
RANK_TEST(InitialValues, OfADamagedCheckpointOnOneHostAreRefusedEverywhere, 2) {
  const CheckpointFolder folder(rank.folder() / "checkpoints");
  const Recipe recipe = of_another_seed(gpt_recipe());
  for (const std::int64_t step : {1, 2}) {
    Model model(recipe, {.zero_stage = 3}, rank);
    save_checkpoint(model, folder, step, rank);
  }
  // Each rank reads from both files.
  for (const Layout& layout : {Layout{}, Layout{.pipeline = 2}}) {
    const auto of = [&](std::int64_t step) { return own_copy(folder.step_folder(step), rank); };
    EXPECT_EQ(refusal(of(1), gpt_recipe(), layout, rank), "");
    const std::filesystem::path own = of(1);
    if (rank.index() == 1) flip_last_bit(own / "0.safetensors");
    rank.wait_for_all("damaged");
    const std::string told = refusal(own, gpt_recipe(), layout, rank);
    EXPECT_NE(told.find("0.safetensors'"), std::string::npos) << told;
    EXPECT_TRUE(told.ends_with(", on rank 1")) << told;
    // Another checkpoint of the same model.
    const std::filesystem::path other = of(rank.index() == 1 ? 2 : 1);
    std::filesystem::rename(other, other.parent_path() / "start");
    EXPECT_EQ(refusal(other.parent_path() / "start", gpt_recipe(), layout, rank),
              "[model] from 'start' differs between rank 0 and rank 1, first in its step");
    rank.wait_for_all("read");
  }
}

}  // namespace
}  // namespace troika::test
