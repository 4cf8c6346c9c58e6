// y = x W^T + b, with input and weight gradients computed apart, whole or one rank's slice of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/lora.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Bias { kAbsent, kPresent };

// The slice of a linear layer that a rank of the tensor axis holds.
struct LinearCut {
  enum class Kind {
    kWhole,
    kColumns,  // this rank has some of the outputs: a slice of the weight's rows and of the bias
    kRows,     // some of the inputs: a slice of the weight's columns; its output is a partial sum
  };
  Kind kind = Kind::kWhole;
  IndexRange range;
  TensorAxis axis;
  // The number of leading columns that this rank counts, where neighbours hold some of them, too.
  std::optional<std::int64_t> counted;

  [[nodiscard]] static LinearCut columns(const TensorAxis& axis, IndexRange outputs);
  [[nodiscard]] static LinearCut overlapping_columns(const TensorAxis& axis, IndexRange outputs,
                                                     std::int64_t counted);
  [[nodiscard]] static LinearCut rows(const TensorAxis& axis, IndexRange inputs);
};

class Linear {
 public:
  // Declares the parameters `<name>.weight` [out, in] and, if present, `<name>.bias` [out].
  // `bias_start` initialises the bias. `in` and `out` are those of the whole layer. With one tensor
  // rank `cut` has no effect.
  Linear(const std::string& name, std::int64_t in, std::int64_t out, Bias bias,
         Initializer weight_start, Initializer bias_start = Initializer::constant(0),
         const LinearCut& cut = {});

  // Puts a pair beside the weight where `targets` take this layer. Call before declare().
  void adapt(LoraTargets& targets);
  void declare(std::vector<ParameterSpec>& specs) const;
  void bind(const Arena& arena);

  // Maps `input` [n, inputs here] to [n, outputs here]. If cut by rows, returns a partial sum,
  // without the bias. `pass` is null in
  // an evaluation, and else what a pair keeps for the backward pass.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, LoraPass* pass = nullptr) const;
  // Maps `gradient` [n, outputs here] to [n, inputs here]. If cut by columns, returns a partial
  // sum.
  [[nodiscard]] at::Tensor backward_input(const at::Tensor& gradient,
                                          LoraPass* pass = nullptr) const;
  // Does what backward_input() does for backward_weight(), where the input has no gradient.
  void prepare_weight(const at::Tensor& gradient, LoraPass& pass) const {
    if (lora_) lora_->backward_inner(gradient, pass);
  }
  void backward_weight(const at::Tensor& gradient, const at::Tensor& input,
                       const LoraPass* pass = nullptr) const;
  // Returns whether backward_weight() has anything to do.
  [[nodiscard]] bool is_trained() const {
    return weight_->is_trained() || (bias_ && bias_->is_trained()) ||
           (lora_ && lora_->is_trained());
  }

  // Adds the bias in place to this rank's slice [rows, out], once the sum has been scattered over
  // the tokens. Has no effect unless the layer is cut by rows.
  void add_bias_(const at::Tensor& sums) const;
  // Adds the gradient of that bias, from this rank's slice [rows, out]. Has no effect unless the
  // layer is cut by rows.
  void add_bias_gradient(const at::Tensor& gradient) const;

  [[nodiscard]] at::ScalarType working_type() const {
    return weight_->working_weight().scalar_type();
  }
  [[nodiscard]] at::ScalarType master_type() const { return weight_->master_type(); }

 private:
  void cut_specs(const LinearCut& cut);
  void sum_bias_gradient(const at::Tensor& gradient) const;

  ParameterSpec weight_spec_;
  ParameterSpec bias_spec_;
  bool has_bias_;
  bool cut_by_rows_ = false;
  TensorAxis axis_;
  std::optional<LoraPair> lora_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace troika
