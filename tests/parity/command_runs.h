// Runs the command on small problems of its own making, and compares what two runs dumped.
#pragma once

#include <troika/checkpoint/tensors.h>

#include <filesystem>
#include <string>
#include <vector>

namespace troika::test {

// Text files of many lengths, some shorter than a sample: the same ones each time.
void write_corpus(const std::filesystem::path& folder);

// A recipe in fp64 with SGD that dumps steps 1 and 3: a GPT on `corpus`, or an MLP on random
// features. `extra` overrides keys, as --set does.
struct CommandRun {
  enum class Model { kGpt, kMlp };
  std::filesystem::path folder;  // where the run folder goes
  std::filesystem::path corpus;
  std::string name;
  int ranks = 1;
  std::vector<std::string> extra;
  Model model = Model::kGpt;
};

// Trains. Throws std::runtime_error with what the command printed unless it succeeds.
void train(const CommandRun& run);

[[nodiscard]] std::filesystem::path run_folder_of(const CommandRun& run);
[[nodiscard]] std::vector<NamedTensor> dumped(const CommandRun& run, int step,
                                              const std::string& what);

// The losses in metrics.jsonl.
[[nodiscard]] std::vector<double> losses(const CommandRun& run);

}  // namespace troika::test
