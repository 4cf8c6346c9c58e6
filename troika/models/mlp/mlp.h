// A multi-layer perceptron: linear layers with a non-linearity between, and any loss. Small enough
// that everything around the arithmetic shows.
#pragma once

#include <troika/models/mlp/options.h>
#include <troika/models/model.h>

namespace troika {

// Builds one unit a layer: parameters `layers.<i>.weight` [out, in] and `layers.<i>.bias` [out].
// They start uniform in +-1 / sqrt(in), as in torch::nn::Linear.
[[nodiscard]] Model build_mlp(const MlpOptions& options, const LossOptions& loss = {});

}  // namespace troika
