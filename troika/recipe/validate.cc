#include <troika/base/text.h>
#include <troika/config/toml_text.h>
#include <troika/device/choose.h>
#include <troika/loss/metric.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/validate.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

void check_name(const Recipe& recipe, const Origins& origins) {
  const std::string& name = recipe.name;
  const bool usable = name.size() <= 128 && name.front() != '.' && name.front() != '-' &&
                      std::none_of(name.begin(), name.end(), [](unsigned char c) {
                        return c < 0x20 || c == 0x7F || c == '/' || c == '\\';
                      });
  if (!usable) {
    origins.fail({"name"}, "name: " + quote(name) + " cannot name a folder",
                 "use letters, digits, '.', '_' and '-', at most 128 of them, not starting with "
                 "'.' or '-'");
  }
}

// Counters of samples and tokens are 64-bit.
void check_totals(const Recipe& recipe, const Origins& origins) {
  const std::int64_t width = traits_of(recipe.model).sample.targets_per_sample;
  const double total = static_cast<double>(recipe.train.steps) *
                       static_cast<double>(recipe.train.global_batch_size) *
                       static_cast<double>(width);
  if (total > 9e18) {
    origins.fail({"train.steps", "train.global_batch_size"},
                 "steps x global_batch_size x seq_len is " + toml_number(total) +
                     " tokens; the counter ends at 9e18");
  }
}

void check_device(const Recipe& recipe, const Origins& origins) {
  const std::string refusal = device_refusal(recipe.train.device);
  if (!refusal.empty()) origins.fail({"train.device"}, "device: " + refusal);
}

void check_metrics(const Recipe& recipe, const Origins& origins) {
  const TrainOptions& train = recipe.train;
  const MetricSubject subject = metric_subject(recipe.model);
  for (const std::string& word : train.metrics) {
    const std::string refusal = metric_refusal(word, subject);
    if (!refusal.empty()) origins.fail({"train.metrics"}, "metrics: " + refusal);
    if (std::ranges::count(train.metrics, word) > 1) {
      origins.fail({"train.metrics"}, "metrics: " + quote(word) + " is there twice");
    }
  }
  const std::string& best = train.best_metric;
  const bool known =
      best == kNoMetric || best == kLossMetric || std::ranges::count(train.metrics, best) > 0;
  if (!known) {
    origins.fail({"train.best_metric"},
                 "best_metric: " + quote(best) + " is not none, loss or one of metrics",
                 "metrics = [" + toml_string(best) + "] has it measured");
  }
  if (best != kNoMetric && train.evaluate_every_steps == 0) {
    origins.fail({"train.best_metric", "train.evaluate_every_steps"},
                 "best_metric needs evaluations, and evaluate_every_steps is 0",
                 "write evaluate_every_steps = 50");
  }
  if (best != kNoMetric && recipe.data.kind().max_held_out_samples(recipe.data.options()) == 0) {
    origins.fail({"train.best_metric", "data.held_out_fraction"},
                 "best_metric needs held-out samples, and held_out_fraction is 0",
                 "write held_out_fraction = 0.01");
  }
  if (train.early_stop_patience > 0 && best == kNoMetric) {
    origins.fail({"train.early_stop_patience"},
                 "early_stop_patience waits for a better best_metric, which is \"none\"",
                 "write best_metric = \"loss\"");
  }
}

void check_keep_best(const Recipe& recipe, const Origins& origins) {
  if (recipe.checkpoint.keep_best == 0) return;
  if (recipe.train.evaluate_every_steps == 0) {
    origins.fail({"checkpoint.keep_best", "train.evaluate_every_steps"},
                 "keep_best needs evaluations, and evaluate_every_steps is 0",
                 "write evaluate_every_steps = 50");
  }
  if (recipe.data.kind().max_held_out_samples(recipe.data.options()) == 0) {
    origins.fail({"checkpoint.keep_best", "data.held_out_fraction"},
                 "keep_best needs held-out samples, and held_out_fraction is 0",
                 "write held_out_fraction = 0.01");
  }
}

void check_mirror(const Recipe& recipe, const Origins& origins) {
  const std::string& mirror = recipe.checkpoint.mirror;
  if (mirror == kNoMirror) return;
  if (is_remote(recipe.checkpoint.folder)) {
    origins.fail({"checkpoint.mirror", "checkpoint.folder"},
                 "mirror: checkpoint.folder is in a store already", "leave mirror out");
  }
  if (is_remote(mirror)) return;
  origins.fail({"checkpoint.mirror"}, "mirror: " + quote(mirror) + " is no URL",
               "write one, such as \"s3://bucket/runs\"; checkpoint.folder takes a path");
}

void check_key(const Recipe& recipe, const Origins& origins) {
  const std::string& key = recipe.checkpoint.key;
  if (key == kNoKey || EncryptionKey::is_source(key)) return;
  origins.fail({"checkpoint.key"}, "key: expected where a key lies, not the key",
               "write \"env:NAME\" for an environment variable, or \"file:/PATH\"");
}

void check_observe(const Recipe& recipe, const Origins& origins) {
  const auto& trace = recipe.observe.trace_steps;
  if (trace.empty()) return;
  if (trace.size() != 2 || trace[0] > trace[1]) {
    origins.fail({"observe.trace_steps"},
                 "trace_steps: expected [first, last] with first <= last, or []");
  }
}

}  // namespace

void validate(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  check_values(recipe_schema(), &recipe, origins);
  check_name(recipe, origins);
  check_loss(recipe.model, origins);
  check_initial_values(recipe.model.from, origins);
  recipe.data.kind().check_model(recipe.data.options(), traits_of(recipe.model).sample,
                                 recipe.model.name(), origins);
  check_totals(recipe, origins);
  check_device(recipe, origins);
  check_metrics(recipe, origins);
  check_keep_best(recipe, origins);
  check_mirror(recipe, origins);
  check_key(recipe, origins);
  check_observe(recipe, origins);
  check_servers(recipe, origins);
  check_compression(recipe, origins);
  check_split(recipe, origins, ranks);
}

}  // namespace troika
