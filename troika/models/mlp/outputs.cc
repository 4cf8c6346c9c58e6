#include <ATen/ATen.h>
#include <troika/models/mlp/mlp.h>
#include <troika/models/mlp/outputs.h>

#include <string>

namespace troika {
namespace {

Linear last_layer(const MlpOptions& options) {
  const std::size_t hidden = options.hidden_dims.size();
  const std::int64_t in = hidden == 0 ? options.input_dim : options.hidden_dims.back();
  // build_mlp() sets the initial values.
  return {"layers." + std::to_string(hidden), in, options.output_dim, Bias::kPresent,
          Initializer::constant(0)};
}

}  // namespace

MlpOutputs::MlpOutputs(const MlpOptions& options, const Arena& arena)
    : hidden_(build_mlp(options).units), last_(last_layer(options)) {
  hidden_.pop_back();  // the layer that computes the loss
  for (const auto& unit : hidden_) unit->bind(arena);
  last_.bind(arena);
}

at::Tensor MlpOutputs::of(const at::Tensor& inputs) const {
  Saved saved;
  saved.mode = Mode::kEvaluate;
  saved.microbatch.tensors = {{"features", inputs}};
  Activation activation{{inputs.to(last_.working_type())}};
  for (const auto& unit : hidden_) {
    std::unique_ptr<UnitState> unused;
    activation = unit->forward(std::move(activation), saved, unused);
  }
  return last_.forward(activation.tensors[0]).to(last_.master_type());
}

}  // namespace troika
