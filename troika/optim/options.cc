#include <fnmatch.h>
#include <troika/base/text.h>
#include <troika/optim/options.h>
#include <troika/optim/schedule.h>

#include <algorithm>

namespace troika {

namespace {

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const LearningRateShape& shape : learning_rate_shapes()) names.push_back(shape.name);
  return names;
}

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// The group of a parameter; null where it has none.
const ParameterGroup* group_of(std::span<const ParameterGroup> groups, const std::string& name) {
  const auto group = std::ranges::find_if(
      groups, [&](const ParameterGroup& each) { return fits(each.match, name); });
  return group == groups.end() ? nullptr : &*group;
}

bool is_frozen(std::span<const ParameterGroup> groups, const std::string& name) {
  const ParameterGroup* group = group_of(groups, name);
  return group != nullptr && group->frozen;
}

// A tied weight has two names and one value, which is trained or not.
void check_tie(std::span<const ParameterGroup> groups, const std::string& name,
               const std::string& other) {
  const bool frozen = is_frozen(groups, name);
  if (frozen == is_frozen(groups, other)) return;
  const std::string& of_both = frozen ? name : other;
  throw UsageError("[optimizer] groups: " + quote(name) + " and " + quote(other) +
                       " are one tied weight, and only " + quote(of_both) + " is frozen",
                   "freeze both names, or neither, or untie them: model.tied_embeddings = false");
}

// clang-format off
std::vector<Key> group_keys() {
  using O = ParameterGroup;
  using K = KeysOf<O>;
  return {
      K::text<&O::match>("match", "a pattern of parameter names, as in \"*.bias\"").required(),
      K::boolean<&O::frozen>("frozen", "keeps its value, which is all that it costs: no gradient, no state, no part in the norm"),
      K::number<&O::lr_factor>("lr_factor", ranges::kNonNegative, "times the learning rate"),
      K::auto_number<&O::weight_decay>("weight_decay", ranges::kNonNegative, "instead of the optimiser's"),
  };
}
// clang-format on

}  // namespace

// clang-format off
std::vector<Key> optimizer_keys() {
  using O = OptimizerOptions;
  using K = KeysOf<O>;
  return {
      K::number<&O::lr>("lr", ranges::kNonNegative, "peak learning rate"),
      K::number<&O::weight_decay>("weight_decay", ranges::kNonNegative, "not on norms and biases"),
      K::word<&O::schedule>("schedule", shape_names, "of the learning rate, after the warm-up"),
      K::integer<&O::warmup_steps>("warmup_steps", ranges::kCountOrOff, "linear rise to `lr`; 0: none"),
      K::number<&O::min_lr>("min_lr", ranges::kNonNegative, "where the schedule ends"),
      K::integer<&O::lr_base_batch_size>("lr_base_batch_size", ranges::kCountOrOff, "> 0: linear scaling rule, lr x global_batch_size / this (Goyal et al. 2017)"),
      K::tables<&O::groups>("groups", group_keys, "parameters by name: match, frozen, lr_factor, weight_decay; the first that fits counts"),
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

void apply_groups(std::span<const ParameterGroup> groups, std::span<const std::string> names,
                  std::span<ParameterSpec> specs) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string& pattern = groups[i].match;
    if (std::ranges::any_of(names, [&](const std::string& name) { return fits(pattern, name); })) {
      continue;
    }
    throw UsageError("[optimizer] groups[" + std::to_string(i) + "]: match = " + quote(pattern) +
                         " fits no parameter of the model",
                     "parameters are " + names.front() + ", ..., " + names.back());
  }
  for (ParameterSpec& spec : specs) {
    if (!spec.tied_to.empty()) check_tie(groups, spec.name, spec.tied_to);
    if (!spec.replica_name.empty()) check_tie(groups, spec.replica_name, spec.name);
    const ParameterGroup* group = group_of(groups, spec.name);
    if (group == nullptr) continue;
    spec.frozen = group->frozen;
    spec.lr_factor = group->lr_factor;
    spec.weight_decay = group->weight_decay;
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Arena& arena,
                                          SharedSums sums) {
  if (!sums) sums = std::make_shared<ParameterSums>(arena);
  return options.kind.kind().make(options.kind.options(), options.weight_decay, arena,
                                  std::move(sums));
}

}  // namespace troika
