#include "command_runs.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace troika::test {
namespace {

constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 2
dim = 24
heads = 3
ffn_dim = 40
vocab_size = 256
seq_len = 37
[data]
kind = "text"
held_out_fraction = 0.1
)";

constexpr const char* kMlp = R"(
[model]
kind = "mlp"
input_dim = 6
hidden_dims = [8, 5]
output_dim = 3
[data]
kind = "random"
)";

constexpr const char* kTraining = R"(
[train]
steps = 3
global_batch_size = 7
micro_batch_size = 2
precision = "fp64"
evaluate_every_steps = 0
[optimizer]
kind = "sgd"
lr = 0.1
momentum = 0.9
warmup_steps = 0
[observe]
tensorboard = false
[debug]
dump_steps = [1, 3]
)";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::filesystem::path run_folder_of(const CommandRun& run) {
  return run.folder / run.name;
}

void write_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (int i = 0; i < 40; ++i) {
    std::ofstream file(folder / ("document-" + std::to_string(i) + ".txt"));
    for (int word = 0; word < 3 + i * i % 50; ++word)
      file << (word * 7919 + i * 104729) % 997 << ' ';
  }
}

void train(const CommandRun& run) {
  std::filesystem::create_directories(run.folder);
  const std::filesystem::path recipe = run.folder / (run.name + ".toml");
  const std::filesystem::path output = run.folder / (run.name + ".log");
  const bool gpt = run.model == CommandRun::Model::kGpt;
  std::ofstream(recipe) << "name = \"parity\"\nseed = 5\n" << (gpt ? kGpt : kMlp) << kTraining;
  std::string command = std::string(TROIKA_COMMAND) + " train " + recipe.string() + " --ranks " +
                        std::to_string(run.ranks) + " --set name=" + run.name +
                        " --set runs_dir=" + run.folder.string();
  if (gpt) command += " --set 'data.paths=[\"" + run.corpus.string() + "/*.txt\"]'";
  for (const std::string& extra : run.extra) command += " --set '" + extra + "'";
  command += " > " + output.string() + " 2>&1 < /dev/null";
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error("failed: " + command + "\n" + read(output));
  }
}

std::vector<NamedTensor> dumped(const CommandRun& run, int step, const std::string& what) {
  return load_tensors(run_folder_of(run) / "dump" / ("step-" + std::to_string(step)) /
                      (what + ".safetensors"));
}

std::vector<double> losses(const CommandRun& run) {
  std::vector<double> result;
  std::ifstream file(run_folder_of(run) / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    result.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  }
  return result;
}

}  // namespace troika::test
