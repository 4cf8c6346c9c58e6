// A small arena with every kind of parameter the optimisers tell apart, and gradients to feed it.
#pragma once

#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/optim/options.h>
#include <troika/param/arena.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

namespace troika::testing_support {

inline ParameterSpec spec_of(std::string name, std::vector<std::int64_t> shape, int unit = 0) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.unit = unit;
  spec.decays = spec.shape.size() > 1;
  spec.initializer = spec.decays ? Initializer::normal(0.3) : Initializer::constant(0.5);
  return spec;
}

// Sizes that leave tails in vectors and chunks; enough chunks for several threads.
inline std::vector<ParameterSpec> mixed_specs() {
  return {spec_of("model.norm.weight", {129}, 2), spec_of("model.embed.weight", {211, 317}, 0),
          spec_of("model.layer.weight", {31, 17}, 1), spec_of("model.layer.bias", {31}, 1)};
}

inline Arena arena_of(const std::vector<ParameterSpec>& specs, NumericTypes types) {
  Arena arena(specs, types, Group());
  arena.initialize(11);
  return arena;
}

// Values in [-1, 1) that depend on (name, step) alone.
inline at::Tensor random_like(const Parameter& parameter, std::int64_t step) {
  const RandomStream stream(stream_key(static_cast<std::uint64_t>(step), parameter.spec().name));
  at::Tensor values = at::empty(parameter.master().sizes(), at::kDouble);
  double* out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    out[i] = 2 * stream.uniform(static_cast<std::uint64_t>(i)) - 1;
  }
  return values;
}

// The gradients of step `step`, times `factor`.
inline void give_gradients(Arena& arena, std::int64_t step, double factor = 1) {
  arena.release_gradients();
  for (const auto& parameter : arena.parameters()) {
    parameter->add_gradient(random_like(*parameter, step) * factor);
  }
}

// The default options with the optimiser of this name.
inline OptimizerOptions options_of(std::string_view kind) {
  OptimizerOptions options;
  options.kind = Chosen<OptimizerKind>::named(kind);
  return options;
}

// The same of "sgd" or "lars", with momentum.
inline OptimizerOptions with_momentum(std::string_view kind, double momentum) {
  OptimizerOptions options = options_of(kind);
  options.kind.as<MomentumOptions>().momentum = momentum;
  return options;
}

// The key `betas` of any kind that has it, whose struct may be its own affair.
inline std::array<double, 2>& betas_of(Chosen<OptimizerKind>& kind) {
  for (const Key& key : kind.kind().keys()) {
    if (key.name == "betas") {
      return std::get<NumberPairSpec>(key.spec).at.edit(kind.options().data());
    }
  }
  throw std::logic_error("no betas");
}

inline constexpr NumericTypes kFp64{at::kDouble, at::kDouble};
inline constexpr NumericTypes kFp32{at::kFloat, at::kFloat};

}  // namespace troika::testing_support
