#include <troika/cli/verify_options.h>
#include <troika/recipe/resolve.h>
#include <troika/verify/layout_text.h>

#include <algorithm>

namespace troika {
namespace {

// Enough for several microbatches on each rank, few enough to be quick.
constexpr std::int64_t kUsualSamples = 16;

bool are_chosen(const VerifyOptions& options) {
  return options.layouts == "auto" || options.layouts == "all";
}

std::vector<TrialLayout> layouts_of(const VerifyOptions& options, const Recipe& recipe) {
  if (options.layouts == "auto") return pairwise_layouts(recipe, options.ranks);
  if (options.layouts == "all") return all_layouts(recipe, options.ranks);
  return parse_layouts(options.layouts, recipe, options.ranks);
}

// Of the largest trial: a list may have more than --ranks says. Throws UsageError where the
// recipe's own batch is too small for one.
std::int64_t ranks_of(const VerifyOptions& options, const Recipe& user) {
  std::int64_t ranks = options.ranks;
  if (are_chosen(options)) return ranks;
  const Recipe whole = trial_recipe(user, user.train.global_batch_size, options.trial_options());
  for (const TrialLayout& layout : layouts_of(options, whole)) {
    ranks = std::max<std::int64_t>(ranks, layout.ranks());
  }
  return ranks;
}

}  // namespace

VerifyPlan plan_of(const VerifyOptions& options, const Recipe& user) {
  const std::int64_t samples = std::max(kUsualSamples, 2 * ranks_of(options, user));
  const Recipe recipe = trial_recipe(user, samples, options.trial_options());
  check_paths(recipe);
  std::vector<TrialLayout> layouts = layouts_of(options, recipe);
  VerifyPlan plan;
  if (options.layouts == "auto") {
    plan.own = own_layout(recipe, user.parallel, options.ranks);
    if (plan.own->layout) layouts.push_back(*plan.own->layout);
  }
  plan.trials = plan_trials(recipe, layouts);
  return plan;
}

int most_ranks(std::span<const Trial> trials) {
  return std::ranges::max_element(trials, {}, &Trial::ranks)->ranks;
}

}  // namespace troika
