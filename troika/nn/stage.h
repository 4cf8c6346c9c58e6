// A model is a row of units; a stage is a run of neighbouring units on one rank. All hooks (overlap
// of communication, gathering, recomputation, pipeline boundaries) sit at the cut points between
// units.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/microbatch.h>
#include <troika/param/arena.h>

#include <memory>
#include <span>
#include <vector>

namespace troika {

// What flows between units: hidden states forward, their gradients backward. The last unit of a
// model returns the loss instead.
struct Activation {
  at::Tensor hidden;
  double loss_sum = 0;  // over the targets that count
  std::int64_t count = 0;
};

// Told, during the backward pass, that a microbatch's contributions to the gradients of a unit are
// all in: the only source of overlap. Called in the same order on every rank of the data axis.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void unit_ready(int unit) = 0;
};

enum class Mode { kTrain, kEvaluate };

// What a unit keeps from its forward pass for its backward pass. Each kind of unit has its own.
class UnitState {
 public:
  virtual ~UnitState() = default;
};

// What a microbatch's forward pass leaves for its backward pass.
struct Saved {
  Microbatch microbatch;
  Mode mode = Mode::kTrain;
  // The loss is multiplied by this before it is differentiated: a power of two, against underflow.
  double loss_scale = 1;
  std::vector<std::unique_ptr<UnitState>> units;
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
  // Takes d loss / d output, returns d loss / d input (undefined from the first unit).
  virtual at::Tensor backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) = 0;
  // Weight gradients that backward_input left over.
  virtual void backward_weight(UnitState& state) = 0;
};

// A chunk of a model between cut points, as schedules see it.
class Stage {
 public:
  virtual ~Stage() = default;
  [[nodiscard]] virtual std::span<const ParameterSpec> specs() const = 0;
  // The last stage returns the sum of losses and the count; `saved` is filled for backward.
  virtual Activation forward(Activation input, Saved& saved) = 0;
  // Input gradients and, unit by unit, weight gradients. Returns the gradient for the stage before.
  virtual at::Tensor backward(Saved& saved, at::Tensor gradient, GradientSink& sink) = 0;
  // The two halves of backward(), for schedules that fill bubbles with weight gradients.
  virtual at::Tensor backward_input(Saved& saved, at::Tensor gradient) = 0;
  virtual void backward_weight(Saved& saved, GradientSink& sink) = 0;
};

// A stage made of units.
class UnitStage final : public Stage {
 public:
  // Units get the numbers `first_unit`, first_unit + 1, ...
  UnitStage(std::vector<std::unique_ptr<Unit>> units, int first_unit);

  [[nodiscard]] std::span<const ParameterSpec> specs() const override { return specs_; }
  // To be called once before the first forward.
  void bind(const Arena& arena);
  Activation forward(Activation input, Saved& saved) override;
  at::Tensor backward(Saved& saved, at::Tensor gradient, GradientSink& sink) override;
  at::Tensor backward_input(Saved& saved, at::Tensor gradient) override;
  void backward_weight(Saved& saved, GradientSink& sink) override;

 private:
  std::vector<std::unique_ptr<Unit>> units_;
  int first_unit_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace troika
