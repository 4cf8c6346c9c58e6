// The kinds of optimisers, a file each. Internal to this folder.
#pragma once

#include <troika/optim/options.h>

namespace troika {

[[nodiscard]] const OptimizerKind& sgd_kind();
[[nodiscard]] const OptimizerKind& adamw_kind();
[[nodiscard]] const OptimizerKind& lamb_kind();
[[nodiscard]] const OptimizerKind& lars_kind();
[[nodiscard]] const OptimizerKind& lion_kind();

// A rule whose options are a T. `Rule<float>` and `Rule<double>` are its optimisers, for either
// type of masters, made from (const T&, double weight_decay, Arena&, SharedSums).
template <class T, template <typename> class Rule>
class RuleKind : public Declared<OptimizerKind, T> {
 public:
  RuleKind(std::string_view name, std::vector<Key> keys, T defaults = {})
      : Declared<OptimizerKind, T>(name, std::move(keys), std::move(defaults)) {}

  [[nodiscard]] std::unique_ptr<Optimizer> make(const Options& options, double weight_decay,
                                                Arena& arena, SharedSums sums) const final {
    const T& own = options.as<T>();
    switch (arena.types().master) {
      case at::kFloat:
        return std::make_unique<Rule<float>>(own, weight_decay, arena, std::move(sums));
      case at::kDouble:
        return std::make_unique<Rule<double>>(own, weight_decay, arena, std::move(sums));
      default:
        throw InternalError("internal error: master weights are neither fp32 nor fp64");
    }
  }
};

}  // namespace troika
