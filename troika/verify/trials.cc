#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/recipe/timeouts.h>
#include <troika/rendezvous/store.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <troika/verify/layout_text.h>
#include <troika/verify/trials.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

std::size_t add_trial(const Recipe& recipe, const TrialLayout& layout, std::vector<Trial>& trials) {
  const std::string name = describe(layout, recipe);
  const auto known = std::ranges::find(trials, name, &Trial::name);
  if (known != trials.end()) return static_cast<std::size_t>(known - trials.begin());
  Trial trial;
  trial.name = name;
  trial.ranks = layout.ranks();
  trial.tolerance = tolerance_of(layout);
  if (const auto bit_reference = bit_reference_layout(layout, recipe)) {
    trial.bit_reference = add_trial(recipe, *bit_reference, trials);
    trials[*trial.bit_reference].is_needed_later = true;
  }
  trial.recipe = recipe_on(recipe, layout);
  trial.recipe.name = "trial-" + std::to_string(trials.size());
  trials.push_back(std::move(trial));
  return trials.size() - 1;
}

// The first ranks of a job, as a job of their own.
World subworld_of(const World& world, const Trial& trial) {
  World subworld = world;
  subworld.size = subworld.local_size = trial.ranks;
  subworld.job += "/" + trial.recipe.name;
  return subworld;
}

// Announces the end of each trial through the job's store: no rank goes on to the rendezvous of the
// next trial before, so that what a trial takes never counts as being late there.
class TrialCompletion {
 public:
  TrialCompletion(const World& world, const Recipe& recipe) {
    if (world.size == 1) return;
    const auto deadline = Deadline::in(start_timeout(recipe));
    store_ = Store::connect(world.store, deadline).with_prefix(key_prefix(world.job));
  }
  void announce(const Trial& trial) {
    if (store_) store_->set(key_of(trial), "");
  }
  void wait(const Trial& trial, Seconds timeout) {
    if (!store_ || store_->wait({key_of(trial)}, Deadline::in(timeout))) return;
    throw DeadlineError("the trial of " + quote(trial.name) + " has not ended after " +
                            format_fixed(timeout.count(), 1) + " s",
                        "try a smaller model, or fewer --steps");
  }

 private:
  static std::string key_of(const Trial& trial) { return "ended/" + trial.recipe.name; }

  std::optional<Store> store_;
};

TrialResult compare(std::span<const Trial> trials, const Trial& trial) {
  const Trial& reference = trials.front();
  const std::vector<std::string> order = parameter_order(trial.recipe);
  const auto compare_with = [&](const Trial& other, Tolerance tolerance) {
    RunComparison comparison(order);
    comparison.compare_runs(run_folder(other.recipe), run_folder(trial.recipe),
                            trial.recipe.debug.dump_steps, tolerance);
    return comparison.result();
  };
  TrialResult result;
  result.layout = trial.name;
  result.ranks = trial.ranks;
  result.with_reference = compare_with(reference, trial.tolerance);
  if (trial.bit_reference &&
      std::filesystem::exists(summary_path(run_folder(trials[*trial.bit_reference].recipe)))) {
    result.with_bit_reference = compare_with(trials[*trial.bit_reference], Tolerance::same_bits());
  } else if (trial.bit_reference) {
    result.error =
        "'" + trials[*trial.bit_reference].name + "', whose bits it must have, has failed";
  }
  return result;
}

// JSON knows no infinity.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

double number_of(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

Json json_of(const Comparison& comparison) {
  return {{"same_bits", comparison.same_bits},
          {"first_difference", comparison.first_difference},
          {"of_tolerance", number(comparison.of_tolerance)},
          {"difference", number(comparison.difference)},
          {"largest_of", comparison.largest_of}};
}

Comparison comparison_of(const Json& json) {
  return {json.at("same_bits"), json.at("first_difference"), number_of(json.at("of_tolerance")),
          number_of(json.at("difference")), json.at("largest_of")};
}

}  // namespace

Recipe trial_recipe(const Recipe& user, std::int64_t most_samples, const TrialOptions& options) {
  Recipe recipe = user;
  recipe.runs_dir = options.folder.string();
  recipe.parallel = {};
  // Trials leave no checkpoints, least of all among those of the user.
  recipe.checkpoint.folder = kRunFolder;
  recipe.checkpoint.mirror = kNoMirror;
  recipe.checkpoint.every_steps = recipe.checkpoint.keep_best = 0;
  recipe.checkpoint.every_minutes = 0;
  recipe.train.steps = options.steps;
  recipe.train.global_batch_size = std::min(user.train.global_batch_size, most_samples);
  recipe.train.micro_batch_size =
      std::min(user.train.micro_batch_size, recipe.train.global_batch_size);
  recipe.train.precision = Precision::kFloat64;
  recipe.train.grad_clip = 1;  // so that a wrong norm shows in the update
  recipe.train.evaluate_every_steps = 0;
  recipe.train.deterministic = true;
  recipe.train.on_nonfinite = OnNonFinite::kStop;
  recipe.optimizer = {};
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
  recipe.optimizer.lr = 0.1;
  recipe.optimizer.weight_decay = user.optimizer.weight_decay;
  recipe.optimizer.schedule = "constant";
  recipe.optimizer.warmup_steps = 0;
  recipe.observe = {};
  recipe.observe.tensorboard = false;
  recipe.debug.dump_steps = {1};
  if (options.steps > 1) recipe.debug.dump_steps.push_back(options.steps);
  return recipe;
}

std::vector<Trial> plan_trials(const Recipe& recipe, std::span<const TrialLayout> layouts) {
  std::vector<Trial> trials;
  add_trial(recipe, reference_layout(recipe), trials);
  trials.front().is_needed_later = true;
  for (const TrialLayout& layout : layouts) add_trial(recipe, layout, trials);
  return trials;
}

bool TrialResult::agrees() const {
  return error.empty() && with_reference.agrees() &&
         (!with_bit_reference || with_bit_reference->agrees());
}

std::string TrialResult::describe_failure() const {
  if (!error.empty()) return "FAILED: " + error;
  if (!with_reference.agrees()) return "DIFFERS: " + with_reference.first_difference;
  if (with_bit_reference && !with_bit_reference->agrees())
    return "OTHER BITS: " + with_bit_reference->first_difference;
  return "";
}

std::string to_json(const TrialResult& result) {
  Json json{{"layout", result.layout},
            {"ranks", result.ranks},
            {"agrees", result.agrees()},
            {"error", result.error},
            {"reference", json_of(result.with_reference)}};
  if (result.with_bit_reference) json["twin"] = json_of(*result.with_bit_reference);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TrialResult trial_result_of(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    TrialResult result{json.at("layout"), json.at("ranks"), comparison_of(json.at("reference")),
                       std::nullopt, json.at("error")};
    if (json.contains("twin")) result.with_bit_reference = comparison_of(json.at("twin"));
    return result;
  } catch (const Json::exception&) {
    throw DataError("a line is no result of a trial");
  }
}

void run_trials(std::span<const Trial> trials, std::size_t first, const World& world,
                const TrialOptions& options, const std::function<void(const TrialResult&)>& done) {
  RunOptions run;
  run.progress.style = ProgressStyle::kSilent;
  TrialCompletion completion(world, trials.front().recipe);
  const Seconds longest = options.step_timeout * static_cast<double>(options.steps + 1);
  for (const Trial& trial : trials.subspan(first)) {
    if (world.rank < trial.ranks) {
      static_cast<void>(run_training(trial.recipe, subworld_of(world, trial), run));
    }
    if (world.rank != 0) {
      completion.wait(trial, longest);
      continue;
    }
    done(compare(trials, trial));
    if (!trial.is_needed_later) std::filesystem::remove_all(options.folder / trial.recipe.name);
    completion.announce(trial);
  }
}

}  // namespace troika
