// The kinds of models that [model] kind can name. Each is a folder with the same files: options.*
// declares its keys and what others may ask of it, <kind>.* builds its units. A new kind is a
// folder, a line in kinds.cc and one in CMakeLists.txt; nothing else branches on a kind.
#pragma once

#include <troika/config/component.h>
#include <troika/loss/loss.h>
#include <troika/loss/metric.h>
#include <troika/models/hub_form.h>
#include <troika/models/initial_values.h>
#include <troika/models/model.h>
#include <troika/nn/adapter_kind.h>
#include <troika/nn/sample_spec.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The properties of a model that planners, checks and meters need before it is built.
struct ModelTraits {
  SampleSpec sample;
  std::int64_t units = 1;
  // The kinds of its units, for messages: "embedding, layers, head". If empty, layers.
  std::string_view units_are = {};
  std::int64_t max_tensor = 1;  // ranks of the tensor axis
  std::string tensor_limit;     // why no more: a clause
  std::int64_t max_stages = 1;  // of a pipeline
  std::string_view stages_key;  // what to raise for more: "layers"
  // The multiply-adds of the largest product of a sample that recurs from unit to unit.
  double largest_product = 0;
  bool has_attention = false;  // that selective checkpointing runs again
  // True if its units run on tensors without memory. Dry runs of others take the memory of one
  // rank, and its time for a few microbatches.
  bool has_meta_kernels = true;
  // True if the first and the last unit share a weight.
  bool ties_first_and_last = false;
  // The number of outputs for each target, and the key that sets it.
  std::int64_t outputs = 1;
  std::string_view outputs_key = {};
  // The tensors that it gives for a sample, that of the loss first. None where a head keeps none.
  std::vector<TensorSpec> output_tensors = {};
  // True if it computes its loss itself, as a head does that keeps no outputs. It then takes no
  // other loss, no other options, and only metrics of the loss.
  bool has_own_loss = false;
  std::string own_loss;  // what it has instead, and why: a clause
};

// Predicts the next token, for sampling text: no loss and no gradients.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  // Returns logits [vocab_size], in the masters' precision, for the token after `token_ids`, int64
  // [length] with 0 < length <= seq_len.
  [[nodiscard]] virtual at::Tensor next(const at::Tensor& token_ids) const = 0;
};

class ModelKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const ModelKind* const> all();
  [[nodiscard]] static const ModelKind& default_kind();

  [[nodiscard]] virtual ModelTraits traits(const Options& options, const LossKind& loss) const = 0;
  // Returns the files that hold a part of the model: they must be the same on all ranks.
  [[nodiscard]] virtual std::vector<std::filesystem::path> files(const Options& options) const;
  // Throws UsageError where the loss does not go with the model. By default refuses a loss that the
  // model would have to return.
  virtual void check_loss(const Options& options, const LossOptions& loss,
                          const Origins& origins) const;
  // Returns whether a recipe may write the loss of such a model, over its outputs and derivatives.
  [[nodiscard]] virtual bool takes_expressions() const { return false; }
  // Throws UsageError unless a run can begin: a recipe may be written before its files are there.
  virtual void check_ready(const Options& options, const LossOptions& loss,
                           const Origins& origins) const;
  // Adapts options that a run was trained with to what lies beside the saved `model`, so that the
  // run folder is all that is needed.
  virtual void adapt_to_run(Options& options, const std::filesystem::path& model) const;
  // Returns whether a size that data may say was left out; traits() then gives it as 0.
  [[nodiscard]] virtual bool has_open_sizes(const Options& options, const Origins& origins) const;
  // Sets the sizes that were left out from the description of the data; null where these say
  // nothing. Throws UsageError naming a key that is then missing.
  virtual void close_sizes(Options& options, const SampleSpec* sample,
                           const Origins& origins) const;
  // Returns the name of a unit in plans: "embedding", "layer 3".
  [[nodiscard]] virtual std::string unit_name(const Options& options, std::int64_t unit) const = 0;
  // Builds the units; see build_model().
  [[nodiscard]] virtual Model build(const Options& options, const LossOptions& loss,
                                    std::uint64_t seed, const ModelLayout& layout) const = 0;
  // Makes a predictor of tokens over an arena that holds the model's parameters and outlives it.
  // Returns null if the model knows no text.
  [[nodiscard]] virtual std::unique_ptr<LanguageModel> language_model(const Options& options,
                                                                      const Arena& arena) const;
  // Writes what other programs read of this kind beside the file `model`, which holds `values`:
  // parameters and buffers, whole. By default nothing. Throws StorageError.
  virtual void save_beside(const Options& options, const std::filesystem::path& model,
                           const std::vector<NamedTensor>& values) const;
  // Returns how the name of the program ends that save_beside() writes, as ".pt2"; "" where a model
  // is no program.
  [[nodiscard]] virtual std::string_view program_suffix() const { return ""; }
  // Returns how a model stands in a folder of Hugging Face's libraries. Throws UsageError naming
  // the choice, or the kind, that has no counterpart there.
  [[nodiscard]] virtual HubForm hub_form(const Options& options) const;
  // Sets `options` to those of the model that a config.json describes, and returns true; false
  // where it describes a model of another kind. Throws DataError naming `source` and the field.
  [[nodiscard]] virtual bool read_hub_config(Options& options, std::string_view json,
                                             const std::string& source) const;
};

// The section [model] of a recipe, and [loss] and [adapter].
class ModelOptions : public Chosen<ModelKind> {
 public:
  using Chosen::Chosen;
  ModelOptions() = default;
  explicit ModelOptions(Chosen<ModelKind> model) : Chosen(std::move(model)) {}
  [[nodiscard]] static ModelOptions named(std::string_view name) {
    return ModelOptions(Chosen::named(name));
  }
  bool operator==(const ModelOptions&) const = default;

  LossOptions loss;
  InitialValueOptions from;
  AdapterOptions adapter;
};

// Returns the properties of a model with its loss.
[[nodiscard]] ModelTraits traits_of(const ModelOptions& model);

// Throws UsageError where the loss does not go with the model.
void check_loss(const ModelOptions& model, const Origins& origins);

// Returns what the metrics of a model judge.
[[nodiscard]] MetricSubject metric_subject(const ModelOptions& model);

// Builds the units of a model, with its adapters. `seed` keys the dropout masks; initial values
// come with the arena. Throws UsageError where a pattern of [adapter] fits no linear layer.
// Requires a layout that its traits allow.
[[nodiscard]] Model build_model(const ModelOptions& model, std::uint64_t seed,
                                const ModelLayout& layout = {});

}  // namespace troika
