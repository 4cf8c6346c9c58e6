#include <troika/config/toml_text.h>
#include <troika/recipe/changes.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace troika {
namespace {

// Sections and keys that decide no numbers.
constexpr std::array<std::string_view, 7> kFree = {"parallel", "comm",    "checkpoint", "storage",
                                                   "elastic",  "observe", "debug"};
constexpr std::string_view kCheckpointFolder = "checkpoint.folder";

// Neither what is trained, nor what its state consists of. Data may grow at their end.
constexpr auto kOnRequest = std::to_array<std::string_view>({
    "data.paths",
    "data.files",
    "train.steps",
    "train.global_batch_size",
    "train.micro_batch_size",
    "train.precision",
    "train.device",
    "train.grad_clip",
    "train.evaluate_every_steps",
    "train.evaluation_samples",
    "train.metrics",
    "train.early_stop_patience",
    "train.deterministic",
    "train.tf32",
    "train.cudnn_benchmark",
    "train.on_nonfinite",
    "optimizer.lr",
    "optimizer.weight_decay",
    "optimizer.schedule",
    "optimizer.warmup_steps",
    "optimizer.min_lr",
    "optimizer.lr_base_batch_size",
    "optimizer.groups",
});

std::map<std::string, std::string> values_of(const Recipe& recipe) {
  std::map<std::string, std::string> values;
  for (const SchemaKey& key : recipe_schema().keys_of(&recipe)) {
    values[key.full_name()] = toml_value(key, &recipe);
  }
  return values;
}

// A list that has got longer at its end.
bool is_longer(const std::string& before, const std::string& after) {
  if (before.size() < 2 || !before.ends_with(']')) return false;
  const std::string_view head = std::string_view(before).substr(0, before.size() - 1);
  return after.starts_with(head) && after.substr(head.size()).starts_with(",");
}

MayChange may_change(const KeyChange& change) {
  const std::string_view section = std::string_view(change.key).substr(0, change.key.find('.'));
  const bool is_of_host = change.key == "runs_dir" || change.key.starts_with("data.cache");
  if (is_of_host) return MayChange::kAlways;
  // Its checkpoints would not be found where the run goes on again. A store may be reached in
  // another way.
  if (change.key == kCheckpointFolder) {
    const auto place = [](std::string_view value) { return value.substr(0, value.find('?')); };
    const bool is_same = is_remote(change.before) && place(change.before) == place(change.after);
    return is_same ? MayChange::kAlways : MayChange::kNever;
  }
  // Who forgets the key would write plain files without a word.
  if (change.key == "checkpoint.key") return MayChange::kOnRequest;
  if (std::ranges::count(kFree, section) > 0) return MayChange::kAlways;
  // Replicas go on from their mean.
  if (section == "sync") return MayChange::kOnRequest;
  if (std::ranges::count(kOnRequest, change.key) == 0) return MayChange::kNever;
  if (change.key.starts_with("data.") && !is_longer(change.before, change.after)) {
    return MayChange::kNever;
  }
  return MayChange::kOnRequest;
}

}  // namespace

std::string KeyChange::describe() const {
  const auto shown = [](const std::string& value) { return value.empty() ? "not there" : value; };
  return key + " was " + shown(before) + " and is " + shown(after);
}

std::vector<KeyChange> changes_between(const Recipe& before, const Recipe& after) {
  const std::map<std::string, std::string> old_values = values_of(before);
  const std::map<std::string, std::string> new_values = values_of(after);
  std::vector<KeyChange> changes;
  const auto compare = [&](const Recipe& recipe) {
    for (const SchemaKey& key : recipe_schema().keys_of(&recipe)) {
      const std::string name = key.full_name();
      const auto old_value = old_values.find(name), new_value = new_values.find(name);
      KeyChange change{name, old_value == old_values.end() ? "" : old_value->second,
                       new_value == new_values.end() ? "" : new_value->second};
      const bool is_known = std::ranges::count(changes, name, &KeyChange::key) > 0;
      if (change.before == change.after || is_known) continue;
      change.may = may_change(change);
      changes.push_back(std::move(change));
    }
  };
  compare(after);
  compare(before);  // keys of another kind
  return changes;
}

std::vector<std::string> keys_that_may_change() {
  return {kOnRequest.begin(), kOnRequest.end()};
}

}  // namespace troika
