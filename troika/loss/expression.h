// A loss that a recipe writes itself: expressions over the inputs, outputs and targets of a model,
// and over derivatives of its outputs with respect to its inputs. Forces are -dE/dx of an energy;
// the residual of a differential equation takes second derivatives through the network (Raissi,
// Perdikaris, Karniadakis 2019). Expressions are those of Python, as TorchScript compiles them.
#pragma once

#include <troika/base/function_ref.h>
#include <troika/loss/loss.h>
#include <troika/nn/tensor_map.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troika {

// A target of such a loss, in floating-point numbers.
struct ExpressionTarget {
  std::string name;
  std::vector<std::int64_t> shape;  // of one sample; empty: a number

  bool operator==(const ExpressionTarget&) const = default;
};

// What a model gives beside its outputs. The value may name inputs, outputs and quantities before
// it, and calls derivative(OF, BY): d OF / d BY with the shape of BY, an input, where OF has one
// number a sample.
struct Quantity {
  std::string name;
  std::string value;
  std::vector<std::int64_t> shape;  // of one sample; empty: a number

  bool operator==(const Quantity&) const = default;
};

// The keys of [loss] with loss = "expression".
struct ExpressionOptions {
  std::string value;  // the loss of each sample, [samples]
  std::vector<ExpressionTarget> targets;
  std::vector<Quantity> quantities;

  bool operator==(const ExpressionOptions&) const = default;
};

// Returns the options of such a loss; null for losses of other kinds.
[[nodiscard]] const ExpressionOptions* expression_of(const LossOptions& loss);

// Calls `act`. A UsageError that begins with the key of an expression, as
// "quantities.forces.value: ...", is thrown again with the place of that key.
void locate_expression_errors(const Origins& origins, FunctionRef<void()> act);

// The compiled expressions of one model. Const access is thread-safe.
class Expressions {
 public:
  // Takes the names of the model's inputs, outputs and targets. Throws UsageError naming the
  // expression that cannot be compiled, and a name that is no word of Python or is there twice.
  Expressions(const ExpressionOptions& options, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs, const std::vector<std::string>& targets);
  ~Expressions();

  // Computes the quantities, in their order, from inputs and outputs [samples, ...]. Inputs that an
  // expression differentiates by must require gradients, and autograd must have recorded how the
  // outputs came of them. Throws UsageError naming a quantity of another shape.
  [[nodiscard]] Tensors quantities(const Tensors& inputs, const Tensors& outputs) const;
  // Returns the loss of each sample, [samples], from the tensors of those names: inputs, outputs,
  // quantities and targets. Throws UsageError unless there is one number for each sample.
  [[nodiscard]] at::Tensor loss(const TensorMap& known) const;

 private:
  struct Code;
  std::unique_ptr<const Code> code_;
};

}  // namespace troika
