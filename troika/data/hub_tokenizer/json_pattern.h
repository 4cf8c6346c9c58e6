// Internal: patterns as tokenizer.json has them.
#pragma once

#include <troika/data/hub_tokenizer/pattern.h>
#include <nlohmann/json.hpp>

namespace troika::hub_tokenizer_plugin {

// Reads {"String": "..."} or {"Regex": "..."}. Throws std::runtime_error and nlohmann's errors.
[[nodiscard]] inline Pattern pattern_of(const nlohmann::json& json) {
  if (json.contains("String")) return Pattern::literal(json.at("String"));
  return Pattern::expression(json.at("Regex"));
}

}  // namespace troika::hub_tokenizer_plugin
