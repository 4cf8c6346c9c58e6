// A multi-layer perceptron's outputs, for predicting: no loss and no gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/models/mlp/options.h>
#include <troika/nn/linear.h>
#include <troika/nn/stage.h>

#include <memory>
#include <vector>

namespace troika {

class MlpOutputs {
 public:
  // Uses `arena`, which holds the parameters of build_mlp(options) and must outlive this.
  MlpOutputs(const MlpOptions& options, const Arena& arena);

  // Maps `inputs` [n, input_dim], of any floating type, to [n, output_dim], in the masters'
  // precision: values, or logits where the loss is cross-entropy.
  [[nodiscard]] at::Tensor of(const at::Tensor& inputs) const;

 private:
  std::vector<std::unique_ptr<Unit>> hidden_;
  Linear last_;
};

}  // namespace troika
