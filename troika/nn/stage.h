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

// What flows between units: tensors forward, gradients of some of them backward. Which they are is
// fixed when the model is built (Unit::outputs): here they have positions, no names.
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
  // Others are sent forward alone.
  bool carries_gradient = true;
};

// Which way a microbatch moves through the units of a stage; at its end it leaves them.
enum class Direction { kForward, kBackward, kOut };

// Told what a stage is about to do with each unit, and what it has done: all overlap of
// communication with computation, and all memory that exists only while it is used, hang on this.
// Called in the same order on every rank of the data axis. A hook of the base class does nothing.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  // What follows is of a pass of this microbatch through this stage of the pipeline: for labels.
  virtual void begin_pass(int microbatch, int stage);
  // Gathers its parameters' working weights; returns when they can be read. In `direction` comes
  // the unit that follows, which may be prefetched.
  virtual void unshard(int unit, Direction direction);
  // This pass reads them no more.
  virtual void reshard(int unit);
  // Its gradients are about to be written.
  virtual void prepare_gradients(int unit);
  // A microbatch's contributions to the gradients of the unit are all in.
  virtual void gradients_ready(int unit);
};

enum class Mode { kTrain, kEvaluate };

// What a unit keeps from its forward pass for its backward pass. Each kind of unit has its own.
class UnitState {
 public:
  virtual ~UnitState() = default;
};

// How much of the forward pass is computed again in the backward pass, as recipes say it: nothing,
// the attention of each block, or whole units.
enum class ActivationCheckpoint { kNone, kSelective, kFull };

template <>
std::span<const std::string_view> names_of<ActivationCheckpoint>();

// Which units run their forward pass again in the backward pass instead of keeping what it leaves.
enum class Recompute { kNone, kUnits };

// What a microbatch's forward pass leaves for its backward pass.
struct Saved {
  Microbatch microbatch;
  Mode mode = Mode::kTrain;
  // The loss is multiplied by this before it is differentiated: a power of two, against underflow.
  double loss_scale = 1;
  std::vector<std::unique_ptr<UnitState>> units;
  // By unit: its inputs, where the forward pass is to run again.
  std::vector<Tensors> inputs;
  // Whether the last unit gives what the model predicts as well, [samples, ...], to metrics.
  bool wants_predictions = false;
};

// One cut of a model. Not thread-safe; gradients go to the parameters' slots.
class Unit {
 public:
  virtual ~Unit() = default;

  // Declarations of its parameters; `unit` in them is filled in by the stage.
  [[nodiscard]] virtual std::vector<ParameterSpec> specs() const = 0;
  // Looks its parameters up, once they have storage.
  virtual void bind(const Arena& arena) = 0;
  // In kEvaluate nothing is kept and `state` stays empty.
  virtual Activation forward(Activation input, const Saved& saved,
                             std::unique_ptr<UnitState>& state) = 0;
  // Takes d loss / d output of each output that carries a gradient, at its position, and returns
  // those of the inputs likewise; nothing from the first unit.
  virtual Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) = 0;
  // Weight gradients that backward_input left over.
  virtual void backward_weight(UnitState& state) = 0;
  // Whether forward() may run twice for one microbatch: it must then give the same bits, and leave
  // gradients alone.
  [[nodiscard]] virtual bool can_recompute() const { return false; }
  // Whether its gradients come from autograd, which records nothing in inference mode.
  [[nodiscard]] virtual bool uses_autograd() const { return false; }
  // Whether microbatches without samples run it as well: it takes part in collectives.
  [[nodiscard]] virtual bool runs_without_samples() const { return false; }
  // Visits what it remembers beside parameters, such as running statistics, under global names.
  virtual void for_each_buffer(
      const std::function<void(const std::string&, const at::Tensor&)>& act) const;
  // Whether forward() already adds to gradients, as a head does that never keeps its logits.
  [[nodiscard]] virtual bool forward_adds_gradients() const { return false; }
  // Returns what it gives for a microbatch; nothing for the loss.
  [[nodiscard]] virtual std::vector<FlowSpec> outputs(const Microbatch& microbatch) const = 0;
  // Returns what it takes, where that differs.
  [[nodiscard]] virtual std::vector<FlowSpec> inputs(const Microbatch& microbatch) const {
    return outputs(microbatch);
  }
};

// The units of a model between two cut points, as schedules see them.
class Stage {
 public:
  virtual ~Stage() = default;
  [[nodiscard]] virtual std::span<const ParameterSpec> specs() const = 0;
  // The last stage returns the loss; `saved` is filled for backward.
  virtual Activation forward(Activation input, Saved& saved, UnitHooks& hooks) = 0;
  // Input gradients and, unit by unit, weight gradients. Returns those for the stage before.
  virtual Tensors backward(Saved& saved, Tensors gradients, UnitHooks& hooks) = 0;
  // The two halves of backward(), for schedules that fill bubbles with weight gradients.
  virtual Tensors backward_input(Saved& saved, Tensors gradients, UnitHooks& hooks) = 0;
  virtual void backward_weight(Saved& saved, UnitHooks& hooks) = 0;
  // Return what crosses the cut before it and behind it.
  [[nodiscard]] virtual std::vector<FlowSpec> inputs(const Microbatch& microbatch) const = 0;
  [[nodiscard]] virtual std::vector<FlowSpec> outputs(const Microbatch& microbatch) const = 0;
};

// A stage made of units. A microbatch without samples passes the hooks and nothing else: ranks of a
// step with fewer microbatches than others take part in its collectives that way.
class UnitStage final : public Stage {
 public:
  // Units get the numbers `first_unit`, first_unit + 1, ...
  UnitStage(std::vector<std::unique_ptr<Unit>> units, int first_unit,
            Recompute recompute = Recompute::kNone);

  [[nodiscard]] std::span<const ParameterSpec> specs() const override { return specs_; }
  // To be called once before the first forward.
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

 private:
  [[nodiscard]] int number_of(std::size_t index) const {
    return first_unit_ + static_cast<int>(index);
  }
  // Whether unit `index` has something to do for this microbatch.
  [[nodiscard]] bool runs(std::size_t index, const Microbatch& microbatch) const {
    return microbatch.samples() > 0 || units_[index]->runs_without_samples();
  }
  // Whether unit `index` runs again in the backward pass.
  [[nodiscard]] bool recomputes(std::size_t index) const;
  [[nodiscard]] Tensors backward_input_of(std::size_t index, Saved& saved, Tensors gradients,
                                          UnitHooks& hooks);
  void backward_weight_of(std::size_t index, Saved& saved, UnitHooks& hooks);

  std::vector<std::unique_ptr<Unit>> units_;
  int first_unit_;
  Recompute recompute_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace troika
