// The trained model of a run, to call: from a program, and for `troika predict` and `troika
// evaluate`.
//
//   const troika::TrainedModel model = troika::load_model("runs/digits");
//   const at::Tensor logits = model({{"images", images}});
#pragma once

#include <troika/nn/loss_terms.h>
#include <troika/nn/microbatch.h>
#include <troika/nn/tensor_map.h>
#include <troika/recipe/recipe.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

// The files of a run that hold a model: that of the last step, and the best by train.best_metric.
enum class SavedModel { kLast, kBest };

// Computes outputs of a trained model. Not thread safe.
class TrainedModel {
 public:
  // Loads a model; see load_model().
  TrainedModel(const std::filesystem::path& run, const std::string& device, SavedModel which,
               std::optional<Precision> precision, std::span<const std::string> overrides = {});
  ~TrainedModel();
  TrainedModel(TrainedModel&&) noexcept;
  TrainedModel& operator=(TrainedModel&&) noexcept;

  // Computes the first output [samples, n] for the inputs that the recipe's model takes, by name,
  // each [samples, ...]: logits of classes or answers, or values, as the loss says. They are in the
  // masters' precision, in the host's memory. Values of a label that was normalised are so, too:
  // data.json in the run's folder has its shift and scale. Throws UsageError naming an input that
  // is missing, has another shape or is none of the model's.
  [[nodiscard]] at::Tensor operator()(const TensorMap& inputs) const;
  // Computes all outputs likewise, by their names: those of [model.outputs], or of the last unit.
  [[nodiscard]] TensorMap outputs(const TensorMap& inputs) const;

  // Throws UsageError where the model computes a loss and nothing else.
  void check_gives_outputs() const;

  // Holds what the model gives for samples, that which the loss takes first, and their loss.
  struct Judged {
    std::vector<at::Tensor> outputs;
    LossTerms loss;
  };
  // Computes both for samples with their targets, on the model's device.
  [[nodiscard]] Judged judge(const Microbatch& samples) const;

  // Returns the recipe of the run, with the precision that this computes in.
  [[nodiscard]] const Recipe& recipe() const;

 private:
  // Returns them as the model takes samples, with targets that stand for none.
  [[nodiscard]] Microbatch samples_of(const TensorMap& inputs) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Loads the model of a finished run to the CPU, or to `device` ("cuda", "auto"). It computes in the
// precision of the run, unless `precision` names another. Throws DataError naming what is missing,
// UsageError if the device is not there. `overrides` change keys of the recipe: "KEY=VALUE".
[[nodiscard]] TrainedModel load_model(const std::filesystem::path& run,
                                      const std::string& device = "cpu",
                                      SavedModel which = SavedModel::kLast,
                                      std::optional<Precision> precision = std::nullopt,
                                      std::span<const std::string> overrides = {});

}  // namespace troika
