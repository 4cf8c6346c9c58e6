// A model that is trained on arrays of the caller's, rather than on a data set: what the C
// interface (troika/troika.h) puts into functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/failure.h>
#include <troika/models/mlp/outputs.h>
#include <troika/nn/stage.h>
#include <troika/optim/optimizer.h>
#include <troika/parallel/pipeline/step_engine.h>
#include <troika/param/arena.h>
#include <troika/recipe/recipe.h>
#include <troika/session/session.h>
#include <troika/sync/all_reduce_sync.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Reads a recipe that may lack name and [data] from a text; `source` names it in messages. Throws
// UsageError naming what such a model cannot do.
[[nodiscard]] Recipe parse_array_recipe(std::string_view text, std::string_view source);
// Reads such a recipe from a file. Throws UsageError as well where it cannot be read.
[[nodiscard]] Recipe load_array_recipe(const std::filesystem::path& file);

// A batch: `inputs` [n, input_dim], `targets` [n, output_dim] or class numbers [n], of any floating
// type.
struct ArrayBatch {
  at::Tensor inputs, targets;
};

class ArrayModel {
 public:
  using ReadRecipe = std::function<Recipe()>;
  using MakeBatch = std::function<ArrayBatch()>;

  // Makes the model. Collective. Throws on every rank what `read` throws on any, and UsageError
  // where recipes differ.
  ArrayModel(Session session, const ReadRecipe& read);
  ArrayModel(Session session, const Recipe& recipe);

  // Takes one step on all ranks' samples, and returns the mean loss before it. Collective. The
  // ranks' numbers of samples may differ, and be zero. Throws on every rank, and leaves the model
  // as it was: what `make` throws on any, and UsageError where a target is no class or no rank has
  // a sample. Also throws NonFiniteError, DeadlineError and PeerError.
  double step(const MakeBatch& make);
  double step(const at::Tensor& inputs, const at::Tensor& targets);
  // Returns the mean loss without a step. Collective.
  [[nodiscard]] double loss(const MakeBatch& make);
  // Returns [n, output_dim], of the inputs' type.
  [[nodiscard]] at::Tensor predict(const at::Tensor& inputs) const;
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  // Save and load the model. Collective: rank 0 writes or reads. Every rank throws rank 0's
  // StorageError or DataError.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

  // Returns whether targets are numbers of classes, and not values.
  [[nodiscard]] bool predicts_classes() const;
  [[nodiscard]] const MlpOptions& shape() const { return recipe_.model.as<MlpOptions>(); }

 private:
  // This rank's part in a step. It has no microbatch where the rank has no samples, or refuses what
  // it is given; `refusal` says why.
  struct LocalBatch {
    std::vector<Microbatch> microbatches;
    std::optional<Failure> refusal;
  };

  [[nodiscard]] LocalBatch local_batch(const MakeBatch& make) const;
  [[nodiscard]] Microbatch microbatch_of(const ArrayBatch& batch) const;
  [[nodiscard]] static StepPart part_of(const LocalBatch& local);
  void on_rank_0(std::string_view label, const std::function<void()>& work) const;
  void refuse_nonfinite(const StepSums& sums, double norm) const;

  Session session_;
  Recipe recipe_;
  UnitStage stage_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::unique_ptr<ParameterSums> norm_sums_;
  std::unique_ptr<AllReduceSync> sync_;
  std::optional<StepEngine> engine_;
  std::optional<MlpOutputs> outputs_;
  std::int64_t steps_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace troika
