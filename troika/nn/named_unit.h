// A unit of a model of the user's own: a torch::nn::Module with a name, that takes tensors and
// gives some. A row of units is what a pipeline is cut from, and what ZeRO 3 gathers and
// recomputation runs again.
//
//   const std::vector<troika::NamedUnit> units = {
//       troika::unit("stem", [] { return Stem(); }, {16, 12, 12}),
//       troika::unit("head", [] { return torch::nn::Linear(256, 4); }, {4})};
//
// Units that take or give several tensors name them. What a later unit takes passes the units
// between, and the cuts, by itself: a skip connection is
//
//   troika::unit("down", [] { return Down(); }, {{}, {{"hidden", {8, 6, 6}}, {"skip", {4, 12,
//   12}}}}), troika::unit("middle", [] { return Middle(); }, {{"hidden"}, {{"hidden", {8, 6,
//   6}}}}), troika::unit("up", [] { return Up(); }, {{"hidden", "skip"}, {{"hidden", {4, 12,
//   12}}}})
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <troika/base/error.h>
#include <troika/nn/loss_terms.h>
#include <troika/nn/microbatch.h>
#include <troika/nn/tensor_map.h>
#include <troika/param/spec.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
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

inline Tensors to_tensors(at::Tensor tensor) {
  return {std::move(tensor)};
}
inline Tensors to_tensors(Tensors tensors) {
  return tensors;
}
template <class... Each>
Tensors to_tensors(const std::tuple<Each...>& tensors) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, tensors);
}

// Calls forward() with each tensor as an argument, or with all of them as a vector.
template <class Module>
Tensors call_forward(Module& module, const Tensors& in) {
  if constexpr (requires { module.forward(in[0]); }) {
    if (in.size() == 1) return to_tensors(module.forward(in[0]));
  }
  if constexpr (requires { module.forward(in[0], in[0]); }) {
    if (in.size() == 2) return to_tensors(module.forward(in[0], in[1]));
  }
  if constexpr (requires { module.forward(in[0], in[0], in[0]); }) {
    if (in.size() == 3) return to_tensors(module.forward(in[0], in[1], in[2]));
  }
  if constexpr (requires { module.forward(in[0], in[0], in[0], in[0]); }) {
    if (in.size() == 4) return to_tensors(module.forward(in[0], in[1], in[2], in[3]));
  }
  if constexpr (requires { module.forward(in); }) {
    return to_tensors(module.forward(in));
  } else {
    throw UsageError("forward() does not take " + std::to_string(in.size()) + " tensors");
  }
}

}  // namespace detail

// A module once it is made.
struct UnitModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors&)> forward;
};

// One of the tensors that a unit gives.
struct UnitTensor {
  std::string name;
  std::vector<std::int64_t> shape;          // for one sample
  std::optional<at::ScalarType> type = {};  // absent: that of the model
  bool carries_gradient = true;             // others are never sent back

  bool operator==(const UnitTensor&) const = default;
};

// The tensors that a unit takes and gives, in the order of forward()'s arguments and results. It
// takes them by name from earlier units or from the batch. If `takes` is empty, it takes the
// outputs of the unit before, or in the first unit the first tensor of the batch.
struct UnitFlow {
  std::vector<std::string> takes;
  std::vector<UnitTensor> gives;
};

struct NamedUnit {
  // Begins the names of its parameters: "stem" makes "stem.conv.weight".
  std::string name;
  // Makes the module, once, and only on ranks that have the unit. Seed a draw of initial values
  // here: it must not depend on other units having been made.
  std::function<UnitModule()> make;
  UnitFlow flow;
  // The cost of its passes, in any unit of measure, at least 0. Pipelines are cut by it.
  double cost = 1;
  // Begins the names of its parameters and buffers. If absent, the unit's name and a dot.
  std::optional<std::string> prefix = {};
  // Describes how the values of each parameter start and how it is treated. If empty, the values
  // are those that the module was made with (ModuleUnit::store).
  std::function<void(ParameterSpec&)> describe = {};
  // True if the unit takes part in collectives, so that microbatches without samples run it as
  // well.
  bool runs_without_samples = false;
  // Keys the draws of torch's random generators in its training passes, with the step and the first
  // sample of the microbatch, so that a run repeats itself. If absent, they go on as they are.
  std::optional<std::uint64_t> seed = {};
  // Keys masks that are drawn by sample (sample_draws.h); the same on all data ranks.
  std::optional<std::uint64_t> sample_seed = {};
};

// The loss of a model, made from one of three kinds of function. The first takes the output of the
// last unit and the targets of the same samples (the batch's tensor "targets"). It returns the sum
// of the samples' losses (at::Reduction::Sum); each sample weighs 1. The second takes the tensors
// of the last unit and those of the batch, by name, and returns the sum and the weights. The third
// takes the microbatch itself.
class UnitLoss {
 public:
  UnitLoss() = default;
  template <std::invocable<const at::Tensor&, const at::Tensor&> Sum>
  UnitLoss(Sum sum)  // NOLINT: a function is a loss
      : terms_([sum = std::move(sum)](const TensorMap& outputs, const Microbatch& microbatch) {
          return LossTerms{sum(outputs[0], microbatch.tensors.at("targets")), {}};
        }) {}
  template <std::invocable<const TensorMap&, const TensorMap&> Terms>
  UnitLoss(Terms terms)  // NOLINT: likewise
      : terms_([terms = std::move(terms)](const TensorMap& outputs, const Microbatch& microbatch) {
          return terms(outputs, microbatch.tensors);
        }) {}
  template <std::invocable<const TensorMap&, const Microbatch&> Terms>
  UnitLoss(Terms terms) : terms_(std::move(terms)) {}  // NOLINT: likewise

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(terms_); }
  [[nodiscard]] LossTerms operator()(const TensorMap& outputs, const Microbatch& microbatch) const {
    return terms_(outputs, microbatch);
  }

 private:
  std::function<LossTerms(const TensorMap&, const Microbatch&)> terms_;
};

// Describes a unit. `make` returns a module holder or a std::shared_ptr to a module. Its forward()
// takes the tensors as arguments, up to four, or as one vector, and returns a tensor, a tuple of
// them or a vector.
template <class Make>
NamedUnit unit(std::string name, Make make, UnitFlow flow, double cost = 1) {
  for (UnitTensor& each : flow.gives) {
    if (each.type && !at::isFloatingType(*each.type)) each.carries_gradient = false;
  }
  const auto build = [make = std::move(make)] {
    auto module = make();
    UnitModule made{detail::module_pointer(module), {}};
    made.forward = [module = std::move(module)](const Tensors& in) mutable {
      return detail::call_forward(*std::addressof(*module), in);
    };
    return made;
  };
  return {std::move(name), build, std::move(flow), cost};
}

// Describes a unit with one output. `output_shape` is its shape for one sample.
template <class Make>
NamedUnit unit(std::string name, Make make, std::vector<std::int64_t> output_shape,
               double cost = 1) {
  return unit(std::move(name), std::move(make),
              UnitFlow{{}, {UnitTensor{"hidden", std::move(output_shape)}}}, cost);
}

// Returns the tensors that cross the cuts of a row of units. Cut i is in front of unit i. No
// tensors cross the cut in front of the first unit; behind the last are its outputs. Throws
// UsageError naming a unit that gives no tensor, or two of one name.
[[nodiscard]] std::vector<std::vector<UnitTensor>> flows_of(std::span<const NamedUnit> units);

// Returns the units with the names that those take which name none: what the unit before gives.
[[nodiscard]] std::vector<NamedUnit> with_default_takes(std::vector<NamedUnit> units);

}  // namespace troika
