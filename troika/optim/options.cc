#include <troika/optim/options.h>

namespace troika {

template <>
std::span<const std::string_view> names_of<LearningRateSchedule>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"constant", "linear", "cosine", "wsd"});
  return kNames;
}

// clang-format off
std::vector<Key> optimizer_keys() {
  using O = OptimizerOptions;
  using K = KeysOf<O>;
  return {
      K::number<&O::lr>("lr", ranges::kNonNegative, "peak learning rate"),
      K::number<&O::weight_decay>("weight_decay", ranges::kNonNegative, "not on norms and biases"),
      K::choice<&O::schedule>("schedule", "of the learning rate, after the warm-up"),
      K::integer<&O::warmup_steps>("warmup_steps", ranges::kCountOrOff, "linear rise to `lr`; 0: none"),
      K::number<&O::min_lr>("min_lr", ranges::kNonNegative, "where the schedule ends"),
      K::integer<&O::lr_base_batch_size>("lr_base_batch_size", ranges::kCountOrOff, "> 0: linear scaling rule, lr x global_batch_size / this (Goyal et al. 2017)"),
  };
}

std::vector<Key> moment_keys() {
  using O = MomentOptions;
  using K = KeysOf<O>;
  return {
      K::pair<&O::betas>("betas", ranges::kBelowOne, "decay of the averages of gradients and of their squares"),
      K::number<&O::eps>("eps", ranges::kAboveZero, "added to the root of the second"),
  };
}

std::vector<Key> momentum_keys() {
  using O = MomentumOptions;
  using K = KeysOf<O>;
  return {
      K::number<&O::momentum>("momentum", ranges::kBelowOne, "of the update before; 0: none"),
      K::boolean<&O::nesterov>("nesterov", "looks ahead; needs momentum"),
  };
}
// clang-format on

void check_momentum(const MomentumOptions& options, const Origins& origins) {
  if (!options.nesterov || options.momentum != 0) return;
  origins.fail({"optimizer.nesterov"},
               "nesterov = true needs momentum; write momentum = 0.9, or nesterov = false");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Arena& arena,
                                          SharedSums sums) {
  if (!sums) sums = std::make_shared<ParameterSums>(arena);
  return options.kind.kind().make(options.kind.options(), options.weight_decay, arena,
                                  std::move(sums));
}

}  // namespace troika
