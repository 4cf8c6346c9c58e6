// The keys of [model] with kind = "mlp".
#pragma once

#include <troika/models/kind.h>
#include <troika/nn/activation_function.h>

#include <cstdint>
#include <vector>

namespace troika {

struct MlpOptions {
  std::int64_t input_dim = 0;  // 0: until the data have said it
  std::vector<std::int64_t> hidden_dims;
  std::int64_t output_dim = 0;
  ActivationFunction activation = ActivationFunction::kRelu;

  bool operator==(const MlpOptions&) const = default;
};

[[nodiscard]] const ModelKind& mlp_kind();

}  // namespace troika
