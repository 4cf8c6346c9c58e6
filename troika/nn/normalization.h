// RMSNorm or LayerNorm over the last dimension. Weights and statistics stay in the masters'
// precision. Over the tensor axis every rank has the whole weights and normalises its slice of the
// tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/config/key.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>

#include <string>
#include <vector>

namespace troika {

enum class Norm { kRmsNorm, kLayerNorm };

template <>
std::span<const std::string_view> names_of<Norm>();

class Normalization {
 public:
  // Declares the parameters `<name>.weight` [dim], ones, and for LayerNorm with `bias`,
  // `<name>.bias` [dim], zeros.
  Normalization(const std::string& name, std::int64_t dim, Norm kind, bool bias, double eps,
                const TensorAxis& axis = {});

  struct State {
    at::Tensor input;
    at::Tensor mean;        // LayerNorm only
    at::Tensor reciprocal;  // 1 / standard deviation, or 1 / rms
  };

  void declare(std::vector<ParameterSpec>& specs) const;
  void bind(const Arena& arena);
  // Normalises `input`, [n, dim] contiguous.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, State& state) const;
  // Returns the input gradient and adds the parameters' gradients, which cost next to nothing:
  // over these rows, so over a tensor axis they are partial sums, as the specs say.
  [[nodiscard]] at::Tensor backward(const State& state, const at::Tensor& gradient) const;
  // Returns whether it has a trained parameter.
  [[nodiscard]] bool is_trained() const {
    return weight_->is_trained() || (bias_ && bias_->is_trained());
  }

 private:
  ParameterSpec weight_spec_;
  ParameterSpec bias_spec_;
  Norm kind_;
  bool has_bias_;
  double eps_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace troika
