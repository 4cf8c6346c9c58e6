// What the recipe can say and troika cannot do yet, in one list. Delete the line of a feature when
// it is built.
#pragma once

#include <troika/config/origins.h>
#include <troika/recipe/recipe.h>

#include <span>
#include <string>
#include <string_view>

namespace troika {

struct Refusal {
  std::string_view key;      // "parallel.tensor"
  std::string_view when;     // what is refused, for people: "above 1"
  std::string_view why;      // one clause
  std::string_view instead;  // what to write: "tensor = 1"
  bool (*applies)(const Recipe&);
};

[[nodiscard]] std::span<const Refusal> refusals();

// Selects whether the recipe's engine is going to carry any traffic.
enum class EngineUse { kUsed, kNotUsed };

// Throws UsageError for the first setting that does not exist yet, naming place, key and what to
// write instead. A setting of an axis of size 1, or an engine that is not used, is never refused.
void refuse_unsupported(const Recipe& recipe, const Origins& origins = Origins(),
                        EngineUse engine = EngineUse::kUsed);

}  // namespace troika
