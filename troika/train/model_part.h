// The part of a recipe's model that one rank holds: the units of its pipeline stages, split over
// its tensor axis, over an arena that ZeRO cuts over its data axis.
#pragma once

#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troika {

// Position of a rank in the layout of a job, with the groups that it belongs to.
struct ModelPlacement {
  TensorAxis tensor;
  int pipeline_rank = 0;
  Sharding sharding;
  Group data = {};
  Seconds timeout = Seconds(60);
};

class ModelPart {
 public:
  // `recipe` is resolved. Parameters are not drawn: call arena().initialize() or load.
  ModelPart(const Recipe& recipe, ModelPlacement placement);

  [[nodiscard]] Arena& arena() { return *arena_; }
  [[nodiscard]] const Arena& arena() const { return *arena_; }
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  // This rank's stages, in ascending order.
  [[nodiscard]] std::vector<Stage*> stages();
  // Every parameter of the whole model under its global name, sorted by it; tied ones left out.
  // Shapes are global; the rest is as on this rank's place of the tensor axis.
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  [[nodiscard]] std::vector<std::string> parameter_names() const;
  // What units remember beside parameters: of the whole model, in the order of its units. Values
  // are there where this rank has the stage.
  struct Buffer {
    std::string name;
    int stage;
    at::Tensor tensor;
    bool is_here;
  };
  [[nodiscard]] const std::vector<Buffer>& buffers() const { return buffers_; }
  // The first unit of each stage of the pipeline, and the number of units.
  [[nodiscard]] const std::vector<int>& cut() const { return cut_; }

 private:
  ModelFacts facts_;
  std::vector<int> cut_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<UnitStage>> stages_;
  std::unique_ptr<Arena> arena_;
};

// Where the units of a model are cut into stages, as `parallel` says: the first unit of each, and
// the number of units.
[[nodiscard]] std::vector<int> cut_of(const ParallelOptions& parallel, const ModelFacts& facts);

// Every parameter of a model, sorted by global name; those that share another's storage left out.
[[nodiscard]] std::vector<ParameterSpec> parameters_of(const Model& model);

// The stages that pipeline rank `rank` of a resolved recipe has, ascending.
[[nodiscard]] std::vector<int> stages_of(const ParallelOptions& parallel, int rank);

// How ZeRO cuts what ranks of a resolved recipe keep, among the ranks of these groups.
[[nodiscard]] Sharding sharding_of(const Recipe& recipe, Group shard, Group replicate);

// The most microbatches that any rank of a resolved recipe has of so many samples over all ranks.
[[nodiscard]] int most_microbatches(const Recipe& recipe, std::int64_t samples);
// Those of a step.
[[nodiscard]] int microbatches_per_step(const Recipe& recipe);

}  // namespace troika
