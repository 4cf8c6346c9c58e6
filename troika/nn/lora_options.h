// What a low-rank adapter (nn/lora.h) is asked to be, and the layers that it is beside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

inline constexpr std::string_view kLoraA = ".lora_A.weight";
inline constexpr std::string_view kLoraB = ".lora_B.weight";

struct LoraOptions {
  static constexpr const char* kDrawn = "none";

  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  // Names linear layers: ends of names, as "q_proj", or shell patterns of whole names.
  std::vector<std::string> match = {"*"};
  std::string from = kDrawn;  // a folder that `peft` or troika has written

  [[nodiscard]] double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const LoraOptions&) const = default;
};

// Chooses the linear layers of a model that get a pair, and remembers all of them.
class LoraTargets {
 public:
  // `seed` keys the masks of dropout.
  LoraTargets(const LoraOptions& options, std::uint64_t seed)
      : options_(options), seed_(seed), fits_(options.match.size(), false) {}

  // Returns whether the linear layer called `layer` gets a pair. Call once for each.
  [[nodiscard]] bool take(const std::string& layer);
  [[nodiscard]] const LoraOptions& options() const { return options_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  // Return the names of all linear layers, and of those with a pair, in the order of the model.
  [[nodiscard]] const std::vector<std::string>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<std::string>& adapted() const { return adapted_; }
  // Throws UsageError naming a pattern that fits no linear layer, or that there is none.
  void check() const;

 private:
  LoraOptions options_;
  std::uint64_t seed_;
  std::vector<bool> fits_;  // by pattern
  std::vector<std::string> layers_, adapted_;
};

}  // namespace troika
