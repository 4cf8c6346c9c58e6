// A model is a row of units built from a recipe, and what planners and meters want to know of it.
// Each kind of model is a folder with the same files: <kind>.h and <kind>.cc build it, further
// files hold its units.
#pragma once

#include <troika/config/recipe.h>
#include <troika/nn/stage.h>

#include <memory>
#include <vector>

namespace troika {

struct ModelFacts {
  // Floating-point operations of one sample, forward and backward (a multiply-add counts two).
  double flops_per_sample = 0;
  // Targets of one sample that can count: seq_len, or 1.
  std::int64_t targets_per_sample = 1;
};

struct Model {
  std::vector<std::unique_ptr<Unit>> units;
  ModelFacts facts;
};

// `seed` keys the dropout masks; initial values are the arena's affair.
[[nodiscard]] Model build_model(const ModelRecipe& recipe, std::uint64_t seed);

}  // namespace troika
