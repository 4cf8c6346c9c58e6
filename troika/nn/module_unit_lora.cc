// Adapters beside the linear layers of a unit whose module runs them itself.
#include <troika/base/error.h>
#include <troika/nn/lora.h>
#include <troika/nn/lora_host.h>
#include <troika/nn/module_unit.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// Names of layers have the unit's prefix, as those of its parameters do.
void ModuleUnit::adapt(LoraTargets& targets) {
  auto* const host = dynamic_cast<LoraHost*>(made_.module.get());
  if (host == nullptr) return;
  check(prefix_.empty(), "a program with adapters is a whole model");
  const std::size_t before = targets.adapted().size();
  host->adapt(targets);
  find_parameters();
  const std::int64_t rank = targets.options().rank;
  const auto shape_of = [&](const std::string& name) {
    const auto found = std::ranges::find(bound_, name, &Bound::name);
    check(found != bound_.end(), "a pair beside a layer is not registered");
    return found->tensor.sizes().vec();
  };
  for (std::size_t i = before; i < targets.adapted().size(); ++i) {
    const std::string& layer = targets.adapted()[i];
    const std::int64_t in = shape_of(layer + std::string(kLoraA))[1];
    const std::int64_t out = shape_of(layer + std::string(kLoraB))[0];
    for (ParameterSpec& spec :
         std::vector{lora_a_spec(layer, rank, in), lora_b_spec(layer, out, rank)}) {
      pairs_.emplace(spec.name, std::move(spec));
    }
  }
}

}  // namespace troika
