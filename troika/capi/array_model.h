// A model that is trained on arrays of the caller's, rather than on a data set: what the C
// interface (troika/troika.h) puts into functions. Any kind whose samples are tensors will do.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/failure.h>
#include <troika/base/function_ref.h>
#include <troika/capi/array_recipe.h>
#include <troika/capi/model_buffers.h>
#include <troika/capi/sample_arrays.h>
#include <troika/nn/stage.h>
#include <troika/optim/optimizer.h>
#include <troika/parallel/pipeline/step_engine.h>
#include <troika/recipe/recipe.h>
#include <troika/session/session.h>
#include <troika/sync/all_reduce_sync.h>
#include <troika/train/model_part.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

// What tells a model from the others of its session. `number` is the same on all ranks; `file`, of
// the recipe, and `name`, which the program gives, need not be.
struct ModelTitle {
  int number = 1;
  std::string file = {};
  std::string name = {};
};

class ArrayModel {
 public:
  using ReadRecipe = std::function<Recipe()>;
  using MakeBatch = std::function<ArrayBatch()>;
  using FindPath = std::function<std::filesystem::path()>;

  // The number of steps whose losses are kept.
  static constexpr std::size_t kLossHistory = 1000;

  // Makes the model, on the device that the recipe's train.device names. Collective. Throws on
  // every rank what `read` throws on any, UsageError where recipes or kinds of devices differ, and
  // DataError where files of the model or its initial values do. `title` is what errors call it,
  // the same on all ranks.
  ArrayModel(Session session, const ReadRecipe& read, ModelTitle title = {});
  ArrayModel(Session session, const Recipe& recipe);

  // Sets what errors and flight recorders call the model beside its number, in place of the file of
  // its recipe. Not collective.
  void set_name(std::string name) { title_.name = std::move(name); }

  // Takes one step on all ranks' samples, and returns the mean loss before it. Collective. The
  // ranks' numbers of samples may differ, and be zero. Throws on every rank, and leaves the model
  // as it was: what `make` throws on any, and UsageError where an array is refused, the model
  // refuses its input, the ranks give other optional targets, or no rank has a sample. Throws
  // RendezvousError on every rank where they make different calls. Also throws NonFiniteError,
  // DeadlineError and PeerError.
  double step(const MakeBatch& make);
  // Takes one step as above on one input and one target, [n, ...] each.
  double step(const at::Tensor& inputs, const at::Tensor& targets);
  // Returns the mean loss without a step. Collective.
  [[nodiscard]] double loss(const MakeBatch& make);
  [[nodiscard]] double loss(const at::Tensor& inputs, const at::Tensor& targets);
  // Returns outputs(), each [samples, ...], in host memory. Not collective.
  [[nodiscard]] TensorMap predict(std::int64_t samples, const NamedArrays& inputs) const;
  // Returns the first output for one input, in the input's type.
  [[nodiscard]] at::Tensor predict(const at::Tensor& inputs) const;

  // Selects a number of each sample for input_gradients(): one value of an output, counted row by
  // row, or the sum of all its values.
  struct Differentiated {
    std::string output = {};  // empty: the first
    std::optional<std::int64_t> component = {};
  };
  // Returns the derivatives of that number with respect to the inputs of these names, each
  // [samples, ...] as its input, in host memory. The model is as in predict(). Not collective.
  // Throws UsageError where the model has no such output or input, the input is of whole numbers,
  // or the kind of model cannot be differentiated so.
  [[nodiscard]] TensorMap input_gradients(std::int64_t samples, const NamedArrays& inputs,
                                          const Differentiated& of,
                                          const std::vector<std::string>& with_respect_to) const;

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  // Returns the learning rate of the last step; before the first, that of the first.
  [[nodiscard]] double learning_rate() const;
  // Returns the mean losses of the last steps, up to kLossHistory, the oldest first.
  [[nodiscard]] const std::deque<double>& losses() const { return losses_; }

  // Save and load the model, and what its kind writes beside the file. Collective: rank 0 writes or
  // reads. Every rank throws rank 0's StorageError, UsageError or DataError, and what `path` throws
  // on any.
  void save(const FindPath& path) const;
  void load(const FindPath& path);
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

  // Save and load all that training goes on from: parameters, buffers, the optimiser's state, the
  // numbers of steps and the losses, in one safetensors file. A model of the same recipe, on any
  // number of ranks, goes on from there; on as many ranks with the same bits. Collective: rank 0
  // writes or reads. Every rank throws rank 0's StorageError or DataError, and what `path` throws
  // on any.
  void save_state(const FindPath& path) const;
  void load_state(const FindPath& path);

  // Return the tensors of one sample.
  [[nodiscard]] const std::vector<TensorSpec>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<TensorSpec>& targets() const { return targets_; }
  // Returns what it gives for one sample, the tensor of the loss first; nothing where it keeps no
  // outputs.
  [[nodiscard]] const std::vector<TensorSpec>& outputs() const { return traits_.output_tensors; }
  // Returns the device that this rank computes on.
  [[nodiscard]] at::Device device() const { return device_; }

 private:
  // This rank's part in a step. It has no microbatch where the rank has no samples, or its model
  // refuses its input; `refusal` says why.
  struct LocalBatch {
    std::vector<Microbatch> microbatches;
    std::optional<Failure> refusal;
  };

  // Throws DataError, on every rank, where the ranks have other files of the model, or other
  // initial values.
  void agree_on_model() const;
  void make_part();
  void make_step_parts();
  // Runs `work`. Where this rank's device fails in it, or is out of memory, tells the other ranks
  // and throws what device_error() says.
  void on_device(FunctionRef<void()> work) const;
  [[nodiscard]] double learning_rate_of(std::int64_t step) const;
  // Runs the passes of a step, and on a device queues its update where the sums are made there.
  [[nodiscard]] StepSums differentiate(LocalBatch& local, double loss_scale);
  // Returns whether the step has been applied. Collective.
  [[nodiscard]] bool update(const StepSums& sums, double loss_scale);
  [[nodiscard]] StepSums evaluate(LocalBatch& local);
  // Collective. Returns this rank's part, where all ranks make this `call` and none refuses it.
  [[nodiscard]] LocalBatch local_batch(std::string_view call, const MakeBatch& make) const;
  // Collective. Throws on every rank where the ranks do not all make this call on this model, or
  // one refuses it. The options are those of ProgramCall.
  void agree(std::string_view call, const std::optional<Failure>& refusal,
             const std::string& options = {}) const;
  [[nodiscard]] Microbatch microbatch_of(const ArrayBatch& batch) const;
  [[nodiscard]] Microbatch microbatch_without_samples() const;
  [[nodiscard]] ArrayBatch batch_of(const at::Tensor& inputs, const at::Tensor& targets) const;
  // Returns samples without targets, in host memory. Throws UsageError where the model keeps no
  // outputs.
  [[nodiscard]] Microbatch samples_to_predict(std::int64_t samples,
                                              const NamedArrays& inputs) const;
  [[nodiscard]] Tensors outputs_of(Microbatch samples) const;
  // Returns the outputs of an evaluation of samples on the device.
  [[nodiscard]] Tensors forward_pass(const Microbatch& samples) const;
  [[nodiscard]] static StepPart part_of(const LocalBatch& local);
  [[nodiscard]] std::vector<NamedTensor> values() const;
  // Returns the parameters, the buffers and the optimiser's state, in their memory.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  // Throws DataError where the file is of save_state().
  static void refuse_state(const std::filesystem::path& path);
  // Collective. Takes over what rank 0 has loaded.
  void share_loaded();
  // Collective. Returns this rank's path, where all ranks make this call and none refuses it.
  [[nodiscard]] std::filesystem::path agreed_path(std::string_view call,
                                                  const FindPath& find) const;
  // Collective. Runs `work` on rank 0, and throws what it throws there on every rank.
  void on_rank_0(std::string_view label, const std::function<void()>& work) const;
  void refuse_nonfinite(const StepSums& sums, double norm) const;
  void record_loss(double loss);

  Session session_;
  ModelTitle title_;
  Recipe recipe_;
  at::Device device_;
  ModelTraits traits_;
  std::vector<TensorSpec> inputs_, targets_;
  std::optional<ModelPart> part_;
  Stage* stage_ = nullptr;  // of part_
  std::optional<ModelBuffers> buffers_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::unique_ptr<ParameterSums> norm_sums_;
  std::unique_ptr<AllReduceSync> sync_;
  std::optional<StepEngine> engine_;
  std::int64_t steps_ = 0;
  std::int64_t updates_ = 0;
  std::deque<double> losses_;
};

}  // namespace troika
