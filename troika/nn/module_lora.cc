#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/nn/module_lora.h>

#include <torch/torch.h>

namespace troika {
namespace {

// A child that has one parameter: it gives this its name, "lora_A.weight".
at::Tensor registered(torch::nn::LinearImpl& linear, const std::string& name,
                      const at::Tensor& value) {
  const auto child = std::make_shared<torch::nn::Module>(name);
  linear.register_module(name, child);
  return child->register_parameter("weight", value);
}

}  // namespace

ModuleLora::ModuleLora(torch::nn::Module& module, const LoraOptions& options, std::uint64_t seed)
    : targets_(options, seed) {
  if (options.dropout != 0) {
    throw UsageError(
        "LoraOptions::dropout: a torch::nn::Linear of one's own cannot drop what goes into a pair",
        "set dropout = 0; [adapter] of a recipe has it");
  }
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module.parameters()) parameter.requires_grad_(false);
  for (const auto& each : module.named_modules("", /*include_self=*/false)) {
    auto* const linear = each.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr || !targets_.take(each.key())) continue;
    const at::Tensor& weight = linear->weight;
    const auto drawn = [&](const ParameterSpec& spec) {
      return initial_values(spec, seed).to(weight.options());
    };
    const std::int64_t rank = options.rank;
    adapted_layers_.push_back(
        {linear, weight,
         registered(*linear, "lora_A", drawn(lora_a_spec(each.key(), rank, weight.size(1)))),
         registered(*linear, "lora_B", drawn(lora_b_spec(each.key(), weight.size(0), rank)))});
  }
  targets_.check();
}

at::Tensor ModuleLora::change_of(const Layer& layer) const {
  return at::mm(layer.b, layer.a) * options().scale();
}

std::vector<at::Tensor> ModuleLora::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const Layer& each : adapted_layers_) {
    parameters.push_back(each.a);
    parameters.push_back(each.b);
  }
  return parameters;
}

void ModuleLora::merge() {
  const at::NoGradGuard no_grad;
  for (const Layer& each : adapted_layers_) {
    at::Tensor weight = each.weight, b = each.b;
    weight.add_(change_of(each));
    b.zero_();
  }
}

// The registered parameter stays: only the layer's own handle of it changes.
ModuleLora::Applied::Applied(const ModuleLora& lora) : lora_(lora) {
  for (const Layer& each : lora.adapted_layers_) {
    each.linear->weight = each.weight + lora.change_of(each);
  }
}

ModuleLora::Applied::~Applied() {
  for (const Layer& each : lora_.adapted_layers_) each.linear->weight = each.weight;
}

}  // namespace troika
