// The section [comm] of a recipe.
#pragma once

#include <troika/config/key.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The engine that stands for the fastest one that the machine can use.
inline constexpr std::string_view kAutoEngine = "auto";

struct CommOptions {
  std::string engine{kAutoEngine};
  double timeout_seconds = 60;
  double rendezvous_timeout_seconds = 300;

  bool operator==(const CommOptions&) const = default;
};

[[nodiscard]] std::vector<Key> comm_keys();

// Returns the words that name an engine: kAutoEngine, then the engines of engine_kind.h.
[[nodiscard]] std::vector<std::string_view> engine_names();

}  // namespace troika
