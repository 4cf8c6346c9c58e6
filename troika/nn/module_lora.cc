#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/nn/module_lora.h>

#include <torch/torch.h>

#include <map>
#include <set>
#include <utility>

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
  const auto chosen = choose(module);  // and check: a refusal leaves the module as it was
  targets_.check();
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module.parameters()) parameter.requires_grad_(false);
  for (const auto& [layer, linear] : chosen) {
    const at::Tensor& weight = linear->weight;
    const auto drawn = [&](const ParameterSpec& spec) {
      return initial_values(spec, seed).to(weight.options());
    };
    const std::int64_t rank = options.rank;
    adapted_layers_.push_back(
        {linear, weight,
         registered(*linear, "lora_A", drawn(lora_a_spec(layer, rank, weight.size(1)))),
         registered(*linear, "lora_B", drawn(lora_b_spec(layer, weight.size(0), rank)))});
  }
}

std::vector<std::pair<std::string, torch::nn::LinearImpl*>> ModuleLora::choose(
    const torch::nn::Module& module) {
  // Those who tie weights in C++ register them twice, or change a layer's own handle alone.
  std::map<const c10::TensorImpl*, std::set<std::string>> names;
  for (const auto& each : module.named_parameters()) {
    names[each.value().unsafeGetTensorImpl()].insert(each.key());
  }
  const auto modules = module.named_modules("", /*include_self=*/false);
  for (const auto& each : modules) {
    const auto* const linear = each.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr) continue;
    names[linear->weight.unsafeGetTensorImpl()].insert(each.key() + ".weight");
  }
  std::vector<std::pair<std::string, torch::nn::LinearImpl*>> chosen;
  for (const auto& each : modules) {
    auto* const linear = each.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr) continue;
    if (names[linear->weight.unsafeGetTensorImpl()].size() > 1) {
      refuse_shared_weight(targets_.options(), each.key());
    } else if (targets_.take(each.key())) {
      chosen.emplace_back(each.key(), linear);
    }
  }
  return chosen;
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
