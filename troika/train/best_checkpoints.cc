#include <troika/base/error.h>
#include <troika/checkpoint/doubt.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/best_checkpoints.h>
#include <troika/train/best_model.h>

#include <algorithm>
#include <variant>

namespace troika {
namespace {

std::string kept_name(std::size_t index) {
  return "best_kept." + std::to_string(index);
}

bool is_better(double one, double other, const std::string& metric) {
  return is_higher_better(metric) ? one > other : one < other;
}

}  // namespace

std::optional<double> held_out_figure(const Manifest& manifest) {
  const auto number = manifest.numbers.find(kHeldOutNumber);
  if (number == manifest.numbers.end() || !doubt_of(manifest).empty()) return std::nullopt;
  const double* value = std::get_if<double>(&number->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::string metric_of(const Manifest& manifest) {
  if (manifest.recipe.empty()) return kNoMetric;
  try {
    return parse_recipe(manifest.recipe, "the recipe of a checkpoint").recipe.train.best_metric;
  } catch (const UsageError&) {  // of another version
    return kNoMetric;
  }
}

void sort_best_first(std::vector<RatedStep>& steps, const std::string& metric) {
  std::ranges::sort(steps, [&](const RatedStep& one, const RatedStep& other) {
    if (one.figure == other.figure) return one.step < other.step;
    return is_better(one.figure, other.figure, metric);
  });
}

BestCheckpoints::BestCheckpoints(const Recipe& recipe)
    : keep_(recipe.checkpoint.keep_best), metric_(recipe.train.best_metric) {}

bool BestCheckpoints::observe(const std::optional<Evaluation>& evaluation) {
  now_.reset();
  if (!evaluation) return false;
  now_ = figure_of(*evaluation, metric_);
  if (keep_ == 0 || !now_) return false;
  const auto place =
      std::ranges::find_if(best_, [&](double other) { return is_better(*now_, other, metric_); });
  if (place == best_.end() && std::ssize(best_) >= keep_) return false;
  best_.insert(place, *now_);
  if (std::ssize(best_) > keep_) best_.pop_back();
  return true;
}

void BestCheckpoints::save(StateDict& state) const {
  if (now_) state.set(kHeldOutNumber, *now_);
  for (std::size_t i = 0; i < best_.size(); ++i) state.set(kept_name(i), best_[i]);
}

void BestCheckpoints::load(const StateDict& state) {
  best_.clear();
  for (std::size_t i = 0; std::ssize(best_) < keep_; ++i) {
    if (!state.numbers().contains(kept_name(i))) return;
    best_.push_back(state.number(kept_name(i)));
  }
}

std::vector<std::int64_t> BestCheckpoints::steps_to_keep(const CheckpointFolder& folder) const {
  std::vector<RatedStep> found;
  std::vector<std::int64_t> steps;
  if (keep_ == 0) return steps;
  for (const std::int64_t step : folder.steps()) {
    try {
      if (const auto figure = held_out_figure(folder.read(step))) found.push_back({*figure, step});
    } catch (const DataError&) {  // it may be good, with a key that is not given
      steps.push_back(step);
    }
  }
  sort_best_first(found, metric_);
  if (std::ssize(found) > keep_) found.resize(static_cast<std::size_t>(keep_));
  for (const RatedStep& each : found) steps.push_back(each.step);
  return steps;
}

}  // namespace troika
