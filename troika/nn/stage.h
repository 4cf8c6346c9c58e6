// A model is a row of units; a stage is a run of neighbouring units on one rank. All hooks (overlap
// of communication, gathering, recomputation, pipeline boundaries) sit at the cut points between
// units.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/config/key.h>
#include <troika/nn/loss_terms.h>
#include <troika/nn/microbatch.h>
#include <troika/param/arena.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

// The tensors that flow between units: all of them forward, gradients of some of them backward. The
// set is fixed when the model is built (Unit::outputs); here tensors have positions, no names.
struct Activation {
  Tensors tensors;
  LossTerms loss = {};  // of the last unit of a model

  // Returns the only tensor; undefined in front of the first unit.
  [[nodiscard]] at::Tensor tensor() const { return tensors.empty() ? at::Tensor() : tensors[0]; }
};

// One of the tensors that cross a cut, for a microbatch and as it lies on this rank.
struct FlowSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  std::optional<at::ScalarType> type = {};  // absent: what the model computes in
  // If false, the tensor is only sent forward.
  bool carries_gradient = true;
};

// The direction of a microbatch through the units of a stage. With kOut it leaves them.
enum class Direction { kForward, kBackward, kOut };

// Receives the events of a stage, before and after its work on each unit. All overlap of
// communication with computation, and all memory that exists only while it is used, depends on
// these hooks. They are called in the same order on every rank of the data axis. A hook of the base
// class does nothing.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  // Announces that the calls that follow belong to a pass of this microbatch through this stage of
  // the pipeline, for labels.
  virtual void begin_pass(int microbatch, int stage);
  // Gathers the working weights of the unit's parameters; returns when they can be read. The next
  // unit in `direction` may be prefetched.
  virtual void unshard(int unit, Direction direction);
  // Tells that this pass no longer reads the working weights.
  virtual void reshard(int unit);
  // Tells that the unit's gradients are about to be written.
  virtual void prepare_gradients(int unit);
  // Tells that a microbatch's contributions to the unit's gradients are complete.
  virtual void gradients_ready(int unit);
};

enum class Mode { kTrain, kEvaluate };

// The state that a unit keeps from its forward pass for its backward pass. Each kind of unit
// derives its own.
class UnitState {
 public:
  virtual ~UnitState() = default;
};

// The share of the forward pass that the backward pass computes again, as recipes name it: none,
// the attention of each block, or whole units.
enum class ActivationCheckpoint { kNone, kSelective, kFull };

template <>
std::span<const std::string_view> names_of<ActivationCheckpoint>();

// The units that run their forward pass again in the backward pass instead of keeping its state.
enum class Recompute { kNone, kUnits };

// Says what a unit's backward pass is for. Units below the first that is trained have none, and the
// gradient of that unit's input is of no use.
enum class Wanted { kNothing, kWeightGradients, kInputGradient };

// The state that a microbatch's forward pass leaves for its backward pass.
struct Saved {
  Microbatch microbatch;
  Mode mode = Mode::kTrain;
  // The loss is multiplied by this before it is differentiated: a power of two, against underflow.
  double loss_scale = 1;
  // Set by the stage for the unit that runs: its backward pass has to give this.
  Wanted wanted = Wanted::kInputGradient;
  // Returns whether the unit has a backward pass.
  [[nodiscard]] bool keeps_state() const {
    return mode == Mode::kTrain && wanted != Wanted::kNothing;
  }
  std::vector<std::unique_ptr<UnitState>> units;
  // The inputs of each unit, where the forward pass is to run again.
  std::vector<Tensors> inputs;
  // True if the last unit also returns the predictions of the model, each [samples, ...], that of
  // the loss first.
  bool wants_predictions = false;
};

class LoraTargets;

// One cut of a model. Not thread-safe; gradients go to the parameters' slots.
class Unit {
 public:
  virtual ~Unit() = default;

  // Declares its parameters; the stage fills in `unit`.
  [[nodiscard]] virtual std::vector<ParameterSpec> specs() const = 0;
  // Shows `targets` the names of its linear layers, and puts a pair beside those that it takes.
  // Called before specs(); by default there are none.
  virtual void adapt(LoraTargets& targets);
  // Looks its parameters up, once they have storage.
  virtual void bind(const Arena& arena) = 0;
  // Runs the forward pass. In kEvaluate it keeps no state and `state` stays empty. Where no
  // backward pass is wanted, what it puts there is dropped.
  virtual Activation forward(Activation input, const Saved& saved,
                             std::unique_ptr<UnitState>& state) = 0;
  // Takes d loss / d output of each output that carries a gradient, at its position. Returns those
  // of the inputs in the same way. The first unit returns none; neither need a unit whose weight
  // gradients alone are wanted.
  virtual Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) = 0;
  // Adds the weight gradients that backward_input() left over.
  virtual void backward_weight(UnitState& state) = 0;
  // Returns whether forward() may run twice for one microbatch. It must then give the same bits,
  // and leave gradients alone.
  [[nodiscard]] virtual bool can_recompute() const { return false; }
  // Returns whether its gradients come from autograd, which records nothing in inference mode.
  [[nodiscard]] virtual bool uses_autograd() const { return false; }
  // Returns whether microbatches without samples run it as well, because it takes part in
  // collectives.
  [[nodiscard]] virtual bool runs_without_samples() const { return false; }
  // Computes the outputs of an evaluation with operators that autograd can differentiate, as often
  // as asked, with respect to `in` and the tensors of the batch: those that it sends on, or, of the
  // last unit, the predictions. Returns nothing where this kind of unit has no such form.
  virtual std::optional<Tensors> differentiable(const Tensors& in, const Microbatch& microbatch);
  // Visits its buffers, such as running statistics, under global names.
  virtual void for_each_buffer(
      const std::function<void(const std::string&, const at::Tensor&)>& act) const;
  // Returns whether forward() already adds to gradients, as a head does that never keeps its
  // logits.
  [[nodiscard]] virtual bool forward_adds_gradients() const { return false; }
  // Returns its outputs for a microbatch; none for the loss.
  [[nodiscard]] virtual std::vector<FlowSpec> outputs(const Microbatch& microbatch) const = 0;
  // Returns its inputs, where they differ from the outputs.
  [[nodiscard]] virtual std::vector<FlowSpec> inputs(const Microbatch& microbatch) const {
    return outputs(microbatch);
  }
};

// The units of a model between two cut points, as schedules see them.
class Stage {
 public:
  virtual ~Stage() = default;
  [[nodiscard]] virtual std::span<const ParameterSpec> specs() const = 0;
  // Runs the forward pass and fills `saved` for the backward pass. The last stage returns the loss.
  virtual Activation forward(Activation input, Saved& saved, UnitHooks& hooks) = 0;
  // Computes the input gradients and, unit by unit, the weight gradients. Returns the gradients for
  // the stage before, which are of no use where nothing below is trained.
  virtual Tensors backward(Saved& saved, Tensors gradients, UnitHooks& hooks) = 0;
  // Compute the two halves of backward(), for schedules that fill bubbles with weight gradients.
  virtual Tensors backward_input(Saved& saved, Tensors gradients, UnitHooks& hooks) = 0;
  virtual void backward_weight(Saved& saved, UnitHooks& hooks) = 0;
  // Return the tensors that cross the cut before it and behind it.
  [[nodiscard]] virtual std::vector<FlowSpec> inputs(const Microbatch& microbatch) const = 0;
  [[nodiscard]] virtual std::vector<FlowSpec> outputs(const Microbatch& microbatch) const = 0;
  // Returns the predictions of a model that is all in this stage, as Unit::differentiable() makes
  // them; nothing where one of its units does not. Its working weights must be there.
  [[nodiscard]] virtual std::optional<Tensors> differentiable(const Microbatch& microbatch) = 0;
};

// A stage made of units. A microbatch without samples only passes the hooks. A rank with fewer
// microbatches in a step takes part in the others' collectives that way.
//
// Units below the first of the model that has a trained parameter have no backward pass: they keep
// nothing of their forward pass, and their hooks are those of an evaluation.
class UnitStage final : public Stage {
 public:
  // Numbers the units `first_unit`, first_unit + 1, ... The model's first unit with a trained
  // parameter is `first_trained` places behind the first of these: negative where a stage before
  // has it, and at least their number where a stage behind has it.
  UnitStage(std::vector<std::unique_ptr<Unit>> units, int first_unit,
            Recompute recompute = Recompute::kNone, int first_trained = -1);

  [[nodiscard]] std::span<const ParameterSpec> specs() const override { return specs_; }
  // Binds the units to their parameters. Call once, before the first forward().
  void bind(const Arena& arena);
  // Visits the buffers of all units.
  void for_each_buffer(const std::function<void(const std::string&, const at::Tensor&)>& act) const;
  Activation forward(Activation input, Saved& saved, UnitHooks& hooks) override;
  Tensors backward(Saved& saved, Tensors gradients, UnitHooks& hooks) override;
  Tensors backward_input(Saved& saved, Tensors gradients, UnitHooks& hooks) override;
  void backward_weight(Saved& saved, UnitHooks& hooks) override;
  [[nodiscard]] std::vector<FlowSpec> inputs(const Microbatch& microbatch) const override {
    return units_.front()->inputs(microbatch);
  }
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch& microbatch) const override {
    return units_.back()->outputs(microbatch);
  }
  [[nodiscard]] std::optional<Tensors> differentiable(const Microbatch& microbatch) override;

 private:
  [[nodiscard]] int number_of(std::size_t index) const {
    return first_unit_ + static_cast<int>(index);
  }
  // Returns whether unit `index` has work to do for this microbatch.
  [[nodiscard]] bool runs(std::size_t index, const Microbatch& microbatch) const {
    return microbatch.samples() > 0 || units_[index]->runs_without_samples();
  }
  // Returns what the backward pass of unit `index` is for.
  [[nodiscard]] Wanted wanted_of(std::size_t index) const;
  // Returns the number of units without a backward pass, which come first.
  [[nodiscard]] std::size_t forward_only() const;
  // Returns whether unit `index` runs again in the backward pass.
  [[nodiscard]] bool recomputes(std::size_t index) const;
  [[nodiscard]] Tensors backward_input_of(std::size_t index, Saved& saved, Tensors gradients,
                                          UnitHooks& hooks);
  void backward_weight_of(std::size_t index, Saved& saved, UnitHooks& hooks);

  std::vector<std::unique_ptr<Unit>> units_;
  int first_unit_;
  Recompute recompute_;
  int first_trained_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace troika
