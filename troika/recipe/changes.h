// What differs between two recipes, key by key, and what may when a run goes on.
#pragma once

#include <troika/recipe/recipe.h>

#include <string>
#include <vector>

namespace troika {

// When a run that goes on may have another value of a key.
enum class MayChange {
  kAlways,     // it decides no numbers: layout, engines, outputs
  kOnRequest,  // with --resume: the run goes on with the new value
  kNever,      // it is another run
};

struct KeyChange {
  std::string key;            // "train.steps"
  std::string before, after;  // as TOML; empty where the recipe has no such key
  MayChange may = MayChange::kNever;

  // Returns "train.steps was 300 and is 400".
  [[nodiscard]] std::string describe() const;
};

// Returns the keys that differ, in the order of the file. Both recipes are resolved.
[[nodiscard]] std::vector<KeyChange> changes_between(const Recipe& before, const Recipe& after);

// Returns the names of the keys that may change on request, for messages and documents.
[[nodiscard]] std::vector<std::string> keys_that_may_change();

}  // namespace troika
