// A unit of a model of the user's own: a torch::nn::Module with a name, that takes a tensor and
// gives one. A row of units is what a pipeline is cut from, and what ZeRO 3 gathers and
// recomputation runs again.
//
//   const std::vector<troika::NamedUnit> units = {
//       troika::unit("stem", [] { return Stem(); }, {16, 12, 12}),
//       troika::unit("head", [] { return torch::nn::Linear(256, 4); }, {4})};
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/spec.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika {

namespace detail {

// Returns the module of a holder, or of a pointer to one; null for an empty one.
template <class Module>
std::shared_ptr<torch::nn::Module> module_pointer(const Module& module) {
  if constexpr (requires { module.ptr(); }) {
    return module.is_empty() ? nullptr : std::shared_ptr<torch::nn::Module>(module.ptr());
  } else {
    return module;
  }
}

}  // namespace detail

// A module once it is made.
struct UnitModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

struct NamedUnit {
  // Begins the names of its parameters: "stem" makes "stem.conv.weight".
  std::string name;
  // Called once, and only on ranks that have the unit: a draw of initial values must not depend on
  // other units having been made (seed it here).
  std::function<UnitModule()> make;
  // Of what it gives for one sample.
  std::vector<std::int64_t> output_shape;
  // What its passes take, in any unit of measure, at least 0: pipelines are cut by it.
  double cost = 1;
  // Begins the names of its parameters and buffers; nothing: the unit's name and a dot.
  std::optional<std::string> prefix = {};
  // Says of each parameter how its values start and how it is treated. Empty: its values are those
  // that the module was made with (ModuleUnit::store).
  std::function<void(ParameterSpec&)> describe = {};
  // Whether it takes part in collectives, so that microbatches without samples run it as well.
  bool runs_without_samples = false;
};

// The sum of the samples' losses (at::Reduction::Sum), from what the last unit gives and the
// targets of the same samples.
using UnitLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;

// `make` gives a module holder or a std::shared_ptr to a module, whose forward() takes a tensor.
template <class Make>
NamedUnit unit(std::string name, Make make, std::vector<std::int64_t> output_shape,
               double cost = 1) {
  const auto build = [make = std::move(make)] {
    auto module = make();
    UnitModule made{detail::module_pointer(module), {}};
    made.forward = [module = std::move(module)](const at::Tensor& input) mutable -> at::Tensor {
      return std::addressof(*module)->forward(input);
    };
    return made;
  };
  return {std::move(name), build, std::move(output_shape), cost};
}

}  // namespace troika
