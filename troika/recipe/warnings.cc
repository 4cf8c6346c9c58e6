#include <troika/config/toml_text.h>
#include <troika/optim/schedule.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/warnings.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace troika {
namespace {

class Warnings {
 public:
  Warnings(const Recipe& recipe, const Origins& origins) : recipe_(recipe), origins_(origins) {}

  std::vector<std::string> of_settings() {
    of_steps();
    of_parallel();
    of_data();
    of_optimizer();
    return std::move(warnings_);
  }

  // On the ranks that there are.
  std::vector<std::string> of_layout() {
    const ParallelOptions& parallel = recipe_.parallel;
    const std::string stage = "= " + std::to_string(parallel.zero_stage);
    if (parallel.zero_stage > 0 && parallel.data == 1) {
      warn("parallel", "zero_stage", stage + " cuts nothing: the data axis has one rank");
    } else if (parallel.zero_stage == 2 && splits_backward(parallel)) {
      warn("parallel", "zero_stage",
           stage + " keeps whole gradients, as stage 1 does: pipeline_schedule = \"" +
               parallel.pipeline_schedule + "\" needs them at once");
    } else if (const std::int64_t most = most_samples(); parallel.zero_stage == 2 &&
                                                         most > recipe_.train.micro_batch_size &&
                                                         !cuts_each_microbatch(parallel)) {
      warn("parallel", "zero_stage",
           stage + " keeps whole gradients, as stage 1 does, with several microbatches a step: " +
               "micro_batch_size = " + std::to_string(most) +
               " makes them one, cut_gradients = \"each_microbatch\" cuts them after each");
    }
    return std::move(warnings_);
  }

 private:
  void warn(std::string_view section, std::string_view key, const std::string& text) {
    const std::string full_key = std::string(section) + "." + std::string(key);
    warnings_.push_back(origins_.where({full_key}) + ": [" + std::string(section) + "] " +
                        std::string(key) + " " + text);
  }

  void of_steps() {
    const std::int64_t steps = recipe_.train.steps;
    const std::string beyond = "reaches beyond train.steps = " + std::to_string(steps);
    const auto is_beyond = [&](std::int64_t step) { return step > steps; };
    if (std::ranges::any_of(recipe_.observe.trace_steps, is_beyond)) {
      warn("observe", "trace_steps", beyond);
    }
    if (std::ranges::any_of(recipe_.debug.dump_steps, is_beyond)) {
      warn("debug", "dump_steps", beyond);
    }
  }

  void of_parallel() {
    const ParallelOptions& parallel = recipe_.parallel;
    if (parallel.data == 1) return;  // ZeRO cuts nothing
    if (parallel.shard > 0 && parallel.zero_stage == 0) {
      warn(
          "parallel", "shard",
          "= " + std::to_string(parallel.shard) +
              " cuts nothing at zero_stage = 0: gradients are added in another order, that is all");
    }
    if (parallel.cut_gradients == CutGradients::kEachMicrobatch && parallel.zero_stage < 2) {
      warn("parallel", "cut_gradients",
           "= \"each_microbatch\" cuts nothing: gradients are cut from zero_stage = 2 on");
    }
    if (parallel.shard == 1 && parallel.zero_stage > 0) {
      warn("parallel", "shard", "= 1 cuts nothing: each rank shards among itself alone");
    }
  }

  // Of a rank, in a step.
  [[nodiscard]] std::int64_t most_samples() const {
    const std::int64_t data = recipe_.parallel.data.value_or(1);
    return (recipe_.train.global_batch_size + data - 1) / data;
  }

  void of_data() {
    for (std::string& warning : recipe_.data.kind().warnings(recipe_.data.options(), origins_)) {
      warnings_.push_back(std::move(warning));
    }
  }

  void of_optimizer() {
    const OptimizerOptions& optimizer = recipe_.optimizer;
    if (learning_rate_shape(optimizer.schedule).falls && optimizer.min_lr > optimizer.lr) {
      warn("optimizer", "min_lr",
           "= " + toml_number(optimizer.min_lr) + " is above lr = " + toml_number(optimizer.lr) +
               ": the rate will rise");
    }
  }

  const Recipe& recipe_;
  const Origins& origins_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> warnings_of(const Recipe& recipe, const Origins& origins) {
  return Warnings(recipe, origins).of_settings();
}

std::vector<std::string> warnings_of_layout(const Recipe& resolved, const Origins& origins) {
  return Warnings(resolved, origins).of_layout();
}

}  // namespace troika
