// A model is a row of units built from a recipe, and what planners and meters want to know of it.
// Each kind of model is a folder with the same files: <kind>.h and <kind>.cc build it, further
// files hold its units.
#pragma once

#include <troika/config/recipe.h>
#include <troika/nn/stage.h>
#include <troika/nn/tensor_axis.h>

#include <memory>
#include <vector>

namespace troika {

struct ModelFacts {
  // Floating-point operations of one sample, forward and backward (a multiply-add counts two).
  double flops_per_sample = 0;
  // The same by unit: where a pipeline is cut.
  std::vector<double> unit_flops;
  // Targets of one sample that can count: seq_len, or 1.
  std::int64_t targets_per_sample = 1;
};

struct Model {
  std::vector<std::unique_ptr<Unit>> units;
  ModelFacts facts;
};

// What of the layout of a job shapes the units of a rank.
struct ModelLayout {
  TensorAxis tensor;
  // kSelective is handled by the blocks, kFull by the stage that the units are in.
  ActivationCheckpoint checkpoint = ActivationCheckpoint::kNone;
  // The first and the last unit are in stages of different ranks: with tied embeddings, the last
  // has a replica of the weight under the same name.
  bool tied_across_stages = false;
};

// `seed` keys the dropout masks; the arena draws initial values. check_split()
// (config/layout.h) refuses a model that cannot be split over so many tensor ranks.
[[nodiscard]] Model build_model(const ModelRecipe& recipe, std::uint64_t seed,
                                const ModelLayout& layout = {});

}  // namespace troika
