// y = x W^T + b, with input and weight gradients computed apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/arena.h>

#include <string>
#include <vector>

namespace troika {

enum class Bias { kAbsent, kPresent };

class Linear {
 public:
  // Parameters `<name>.weight` [out, in] and, if present, `<name>.bias` [out], which starts at
  // `bias_start`.
  Linear(const std::string& name, std::int64_t in, std::int64_t out, Bias bias,
         Initializer weight_start, Initializer bias_start = Initializer::constant(0));

  void declare(std::vector<ParameterSpec>& specs) const;
  void bind(const Arena& arena);

  // `input` [n, in] -> [n, out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;
  // `gradient` [n, out] -> [n, in].
  [[nodiscard]] at::Tensor backward_input(const at::Tensor& gradient) const;
  void backward_weight(const at::Tensor& gradient, const at::Tensor& input) const;

  [[nodiscard]] at::ScalarType value_type() const { return weight_->value().scalar_type(); }
  [[nodiscard]] at::ScalarType master_type() const { return weight_->master().scalar_type(); }

 private:
  ParameterSpec weight_spec_;
  ParameterSpec bias_spec_;
  bool has_bias_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace troika
