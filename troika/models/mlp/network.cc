#include <troika/models/mlp/layers.h>
#include <troika/models/mlp/network.h>

#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace troika {
namespace {

// Its parameters are called layers.<i>.weight and layers.<i>.bias.
class MlpNetwork final : public torch::nn::Module {
 public:
  explicit MlpNetwork(const MlpOptions& options) : activation_(options.activation) {
    std::int64_t in = options.input_dim;
    for (const std::int64_t out : options.hidden_dims) {
      layers_->push_back(torch::nn::Linear(in, out));
      in = out;
    }
    layers_->push_back(torch::nn::Linear(in, options.output_dim));
    register_module("layers", layers_);
  }

  at::Tensor forward(at::Tensor hidden) {
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      if (i > 0) hidden = troika::apply(activation_, hidden);
      hidden = layers_[i]->as<torch::nn::Linear>()->forward(hidden);
    }
    return hidden;
  }

 private:
  ActivationFunction activation_;
  torch::nn::ModuleList layers_;
};

// How each parameter starts, by its name.
std::map<std::string, Initializer> starts_of(const MlpOptions& options) {
  std::vector<std::int64_t> inputs = {options.input_dim};
  inputs.insert(inputs.end(), options.hidden_dims.begin(), options.hidden_dims.end());
  std::map<std::string, Initializer> starts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i);
    starts[layer + ".weight"] = starts[layer + ".bias"] = mlp_start(inputs[i]);
  }
  return starts;
}

}  // namespace

RowModel mlp_row(const MlpOptions& options, SampleSpec sample) {
  NamedUnit network = unit(
      "network", [options] { return std::make_shared<MlpNetwork>(options); },
      UnitFlow{{}, {UnitTensor{"outputs", {options.output_dim}}}});
  network.prefix = "";
  network.describe = [starts = starts_of(options)](ParameterSpec& spec) {
    spec.initializer = starts.at(spec.name);
  };
  return {std::move(sample), {std::move(network)}, {}};
}

}  // namespace troika
