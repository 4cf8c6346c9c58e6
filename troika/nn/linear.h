// y = x W^T + b, with input and weight gradients computed apart, whole or one rank's slice of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Bias { kAbsent, kPresent };

// How a linear layer is split over the tensor axis.
struct LinearCut {
  enum class Kind {
    kWhole,
    kColumns,  // this rank has some of the outputs: a slice of the weight's rows and of the bias
    kRows,     // some of the inputs: a slice of the weight's columns; its output is a partial sum
  };
  Kind kind = Kind::kWhole;
  IndexRange held;
  TensorAxis axis;
  // Columns that neighbours hold, too: how many of the leading ones this rank counts.
  std::optional<std::int64_t> counted;

  [[nodiscard]] static LinearCut columns(const TensorAxis& axis, IndexRange outputs);
  [[nodiscard]] static LinearCut overlapping_columns(const TensorAxis& axis, IndexRange outputs,
                                                     std::int64_t counted);
  [[nodiscard]] static LinearCut rows(const TensorAxis& axis, IndexRange inputs);
};

class Linear {
 public:
  // Parameters `<name>.weight` [out, in] and, if present, `<name>.bias` [out], which starts at
  // `bias_start`. `in` and `out` are those of the whole layer. With one tensor rank `cut` is as
  // good as none.
  Linear(const std::string& name, std::int64_t in, std::int64_t out, Bias bias,
         Initializer weight_start, Initializer bias_start = Initializer::constant(0),
         const LinearCut& cut = {});

  void declare(std::vector<ParameterSpec>& specs) const;
  void bind(const Arena& arena);

  // `input` [n, inputs here] -> [n, outputs here]. Cut by rows: a partial sum, without the bias.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;
  // `gradient` [n, outputs here] -> [n, inputs here]. Cut by columns: a partial sum.
  [[nodiscard]] at::Tensor backward_input(const at::Tensor& gradient) const;
  void backward_weight(const at::Tensor& gradient, const at::Tensor& input) const;

  // Cut by rows, the bias joins where the sum has been scattered over the tokens: adds it to this
  // rank's slice [rows, out], in place. Without effect otherwise.
  void add_bias_(const at::Tensor& sums) const;
  // And its gradient, from this rank's slice [rows, out]. Without effect otherwise.
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
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

}  // namespace troika
