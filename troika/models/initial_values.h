// Where the initial values of a model of any kind come from, as [model] from says.
#pragma once

#include <troika/config/key.h>
#include <troika/config/origins.h>

#include <string>
#include <vector>

namespace troika {

// A tensor whose name fits `match` is taken for that of the model called `to`. A `*` at the end of
// both stands for the same text.
struct RenamedTensors {
  std::string match;
  std::string to;

  bool operator==(const RenamedTensors&) const = default;
};

// The values that a model starts from in place of drawn ones.
struct InitialValueOptions {
  static constexpr const char* kDrawn = "none";

  std::string path = kDrawn;  // a run, a checkpoint, or a safetensors file
  std::vector<RenamedTensors> rename;
  std::vector<std::string> ignore;  // shell patterns of the model's names

  [[nodiscard]] bool are_drawn() const { return path == kDrawn; }
  bool operator==(const InitialValueOptions&) const = default;
};

// Returns its keys: "from", "from_rename", "from_ignore".
[[nodiscard]] std::vector<Key> initial_value_keys();
// Throws UsageError naming a pattern that cannot be meant.
void check_initial_values(const InitialValueOptions& options, const Origins& origins);

}  // namespace troika
