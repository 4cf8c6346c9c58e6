// The section [optimizer] of a recipe: which rule, and what all rules share.
#pragma once

#include <troika/config/component.h>
#include <troika/optim/optimizer.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// An optimiser that [optimizer] kind can name. A new one is a file that defines its kind, and a
// line in kinds.cc.
class OptimizerKind : public Component {
 public:
  // Returns every optimiser that there is.
  [[nodiscard]] static std::span<const OptimizerKind* const> all();
  [[nodiscard]] static const OptimizerKind& default_kind();

  // Returns the names of the values of state that it keeps for each element.
  [[nodiscard]] virtual std::vector<std::string_view> state_names(const Options& options) const = 0;
  // Returns whether it scales an update by the norm of a parameter's gradient or update.
  [[nodiscard]] virtual bool uses_layer_norms() const { return false; }
  // Makes it for an arena whose masters are fp32 or fp64; see make_optimizer().
  [[nodiscard]] virtual std::unique_ptr<Optimizer> make(const Options& options, double weight_decay,
                                                        Arena& arena, SharedSums sums) const = 0;
};

// The treatment of the parameters that a pattern names. The first pattern that fits counts.
struct ParameterGroup {
  std::string match;  // a shell pattern of global names; `*` stands for any text
  bool frozen = false;
  double lr_factor = 1;
  std::optional<double> weight_decay = {};  // absent: the optimiser's, where the parameter decays

  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerOptions {
  Chosen<OptimizerKind> kind;
  double lr = 1e-3;
  double weight_decay = 0.1;
  std::string schedule = "cosine";  // one of learning_rate_shapes()
  std::int64_t warmup_steps = 20;
  double min_lr = 1e-4;
  std::int64_t lr_base_batch_size = 0;
  std::vector<ParameterGroup> groups;

  bool operator==(const OptimizerOptions&) const = default;
};

// Returns the keys of every kind, but for `kind` itself.
[[nodiscard]] std::vector<Key> optimizer_keys();

// The options of adamw and lamb.
struct MomentOptions {
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;

  bool operator==(const MomentOptions&) const = default;
};
[[nodiscard]] std::vector<Key> moment_keys();

// The rule of servers whose workers push what steps of their own have changed; no [optimizer] names
// it. With g_i the i-th push of a round, in units of a mean change, and a_i its share of the round
// (StepInput::round), which is 1 / N where N workers push:
//
//   w -= lr a_i g_i  at each;  after the last also  b = momentum b + sum a_i g_i,
//                              w -= lr momentum b
//
// One push a round is SGD with Nesterov's momentum. Of pushes that come one after the other, the
// momentum waits for a whole round (delayed Nesterov, Liu et al. 2024): N full steps in its
// direction, and in theirs, would not converge.
struct OuterOptions {
  double momentum = 0.9;
  bool waits_for_round = false;  // rounds have several pushes, whose sum is state

  bool operator==(const OuterOptions&) const = default;
};
[[nodiscard]] OptimizerOptions outer_optimizer(double lr, OuterOptions options);

// The options of sgd and lars.
struct MomentumOptions {
  double momentum = 0;
  bool nesterov = false;

  bool operator==(const MomentumOptions&) const = default;
};
[[nodiscard]] std::vector<Key> momentum_keys();
// Throws UsageError for Nesterov's momentum without momentum.
void check_momentum(const MomentumOptions& options, const Origins& origins);

// Sets the treatment of each parameter from the first group whose pattern fits its name. Throws
// UsageError where a pattern fits none of `names`, those of the whole model.
void apply_groups(std::span<const ParameterGroup> groups, std::span<const std::string> names,
                  std::span<ParameterSpec> specs);

// Makes the optimiser of a recipe, and allocates its state, zero. `arena` must outlive it. `sums`
// are over that arena. If null, a rank holds the whole model, except for ZeRO shards.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                                        Arena& arena, SharedSums sums = nullptr);

}  // namespace troika
