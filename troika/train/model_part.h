// The part of a recipe's model that one rank holds: the units of its pipeline stages, split over
// its tensor axis, over an arena that ZeRO cuts over its data axis.
#pragma once

#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>
#include <troika/param/state_dict.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troika {

// The position of a rank in the layout of a job, with the groups that it belongs to.
struct ModelPlacement {
  TensorAxis tensor;
  int pipeline_rank = 0;
  Sharding sharding;
  Group data = {};
  Seconds timeout = Seconds(60);
  at::Device device = at::kCPU;
  bool dry_run_of_device = false;  // tensors have shapes alone, and stand for a device's
};

class ModelPart {
 public:
  // Builds the part from a resolved `recipe`. Parameters are not drawn: call arena().initialize()
  // or load.
  ModelPart(const Recipe& recipe, ModelPlacement placement);

  [[nodiscard]] Arena& arena() { return *arena_; }
  [[nodiscard]] const Arena& arena() const { return *arena_; }
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  // Returns whether adapters are trained beside the model's own parameters: those are all frozen,
  // and come from where the model does.
  [[nodiscard]] bool has_adapters() const { return !adapters_.empty(); }
  // Returns whether the parameter of this name is an adapter's.
  [[nodiscard]] bool is_adapter(const std::string& name) const { return adapters_.contains(name); }
  // Returns whether a run keeps the tensor of this name in checkpoints and in its model. Where it
  // has adapters: these and buffers alone.
  [[nodiscard]] bool is_saved(const std::string& name) const { return !base_.contains(name); }
  // Returns this rank's stages, in ascending order.
  [[nodiscard]] std::vector<Stage*> stages();
  // Returns every parameter of the whole model, sorted by global name; tied ones left out. Shapes
  // are global. The other fields are those of this rank's place on the tensor axis.
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  [[nodiscard]] std::vector<std::string> parameter_names() const;
  // A tensor that a unit keeps beside parameters. The list covers the whole model, in the order of
  // its units. Values are there where this rank has the stage.
  struct Buffer {
    std::string name;
    int stage;
    at::Tensor tensor;
    bool is_here;
  };
  [[nodiscard]] const std::vector<Buffer>& buffers() const { return buffers_; }
  // Returns every tensor of the whole model, parameters and buffers, sorted by name.
  [[nodiscard]] std::vector<StateSpec> specs() const;
  // Returns this rank's parts of them, in their memory: call arena().publish() after writing.
  [[nodiscard]] StateDict places() const;
  // Returns the first unit of each stage of the pipeline, and the number of units.
  [[nodiscard]] const std::vector<int>& cut() const { return cut_; }
  // Returns the first stage of the pipeline with a trained parameter; the number of stages if there
  // is none.
  [[nodiscard]] int first_trained_stage() const { return first_trained_stage_; }

 private:
  ModelFacts facts_;
  std::set<std::string> adapters_, base_;  // empty without adapters
  std::vector<int> cut_;
  int first_trained_stage_ = 0;
  std::vector<ParameterSpec> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<UnitStage>> stages_;
  std::unique_ptr<Arena> arena_;
};

// Returns the cut of a model into stages that `parallel` asks for: the first unit of each, and the
// number of units.
[[nodiscard]] std::vector<int> cut_of(const ParallelOptions& parallel, const ModelFacts& facts);

// Returns every parameter of a model, sorted by global name; those that share another's storage
// left out.
[[nodiscard]] std::vector<ParameterSpec> parameters_of(const Model& model);

// Returns the stages that pipeline rank `rank` of a resolved recipe has, ascending.
[[nodiscard]] std::vector<int> stages_of(const ParallelOptions& parallel, int rank);

// Returns the ZeRO sharding of a resolved recipe over these groups.
[[nodiscard]] Sharding sharding_of(const Recipe& recipe, Group shard, Group replicate);

// Returns the most microbatches that any rank of a resolved recipe has, for so many samples over
// all ranks.
[[nodiscard]] int most_microbatches(const Recipe& recipe, std::int64_t samples);
// Returns the most microbatches that any rank has in a step.
[[nodiscard]] int microbatches_per_step(const Recipe& recipe);
// Returns the ranks that share out the samples of a step: the data axes of all islands.
[[nodiscard]] std::int64_t replicas_of(const Recipe& recipe);

}  // namespace troika
