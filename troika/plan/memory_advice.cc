#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/plan/memory_advice.h>
#include <troika/recipe/resolve.h>
#include <troika/train/run.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {
namespace {

struct Change {
  std::string text;  // as to be written
  std::function<void(Recipe&)> apply;
};

Change checkpoint(ActivationCheckpoint kind) {
  return {"activation_checkpoint = \"" + std::string(name_of(kind)) + "\"",
          [kind](Recipe& recipe) { recipe.parallel.activation_checkpoint = kind; }};
}

Change microbatch(std::int64_t size) {
  return {"micro_batch_size = " + std::to_string(size),
          [size](Recipe& recipe) { recipe.train.micro_batch_size = size; }};
}

Change zero(int stage) {
  return {"zero_stage = " + std::to_string(stage),
          [stage](Recipe& recipe) { recipe.parallel.zero_stage = stage; }};
}

// Cuts the gradients of each microbatch, so that ZeRO 2 and 3 keep none whole.
Change cut_each_microbatch() {
  return {"cut_gradients = \"" + std::string(name_of(CutGradients::kEachMicrobatch)) + "\"",
          [](Recipe& recipe) { recipe.parallel.cut_gradients = CutGradients::kEachMicrobatch; }};
}

// Returns whether gradients may be cut after each microbatch, and are not yet.
bool may_cut_each_microbatch(const ParallelOptions& parallel) {
  return parallel.cut_gradients != CutGradients::kEachMicrobatch && !splits_backward(parallel);
}

Change combined(const Change& first, const Change& second) {
  return {first.text + (first.text.empty() || second.text.empty() ? "" : ", ") + second.text,
          [first, second](Recipe& recipe) {
            if (first.apply) first.apply(recipe);
            if (second.apply) second.apply(recipe);
          }};
}

// How many ranks the data axis has after the change.
std::int64_t data_ranks(const Change& change, Recipe recipe, int ranks) {
  if (change.apply) change.apply(recipe);
  const ParallelOptions& parallel = recipe.parallel;
  return parallel.data.value_or(ranks / (parallel.context * parallel.tensor * parallel.pipeline));
}

// Axes so many times as long, whose ranks come from the data axis; nothing where that has too few.
std::optional<Change> longer_axes(const ParallelOptions& now, std::int64_t tensor_times,
                                  std::int64_t pipeline_times) {
  const std::int64_t tensor = now.tensor * tensor_times, pipeline = now.pipeline * pipeline_times;
  std::optional<std::int64_t> data = now.data;
  if (data && *data % (tensor_times * pipeline_times) != 0) return std::nullopt;
  if (data) *data /= tensor_times * pipeline_times;
  std::vector<std::string> words;
  const auto say = [&](const std::string& name, std::int64_t size) {
    words.push_back(name + " = " + std::to_string(size));
  };
  if (tensor_times > 1) say("tensor", tensor);
  if (pipeline_times > 1) say("pipeline", pipeline);
  if (data) say("data", *data);
  return Change{join(words, ", "), [=](Recipe& recipe) {
                  recipe.parallel.tensor = tensor;
                  recipe.parallel.pipeline = pipeline;
                  recipe.parallel.data = data;
                }};
}

// Only changes that change something.
std::vector<Change> changes_of(const Recipe& recipe, int ranks) {
  std::vector<Change> changes;
  const ParallelOptions& now = recipe.parallel;
  if (now.activation_checkpoint == ActivationCheckpoint::kNone &&
      traits_of(recipe.model).has_attention) {
    changes.push_back(checkpoint(ActivationCheckpoint::kSelective));
  }
  if (now.activation_checkpoint != ActivationCheckpoint::kFull) {
    changes.push_back(checkpoint(ActivationCheckpoint::kFull));
  }
  for (std::int64_t size = recipe.train.micro_batch_size / 2; size >= 1; size /= 2) {
    changes.push_back(microbatch(size));
  }
  if (data_ranks({}, recipe, ranks) > 1) {
    if (now.zero_stage >= 2 && may_cut_each_microbatch(now)) {
      changes.push_back(cut_each_microbatch());
    }
    for (int stage = static_cast<int>(now.zero_stage) + 1; stage <= 3; ++stage) {
      changes.push_back(zero(stage));
      if (stage >= 2 && may_cut_each_microbatch(now)) {
        changes.push_back(combined(zero(stage), cut_each_microbatch()));
      }
    }
  }
  const auto try_axes = [&](std::int64_t tensor_times, std::int64_t pipeline_times) {
    auto change = longer_axes(now, tensor_times, pipeline_times);
    if (change) changes.push_back(*std::move(change));
  };
  for (std::int64_t times = 2; now.tensor * times <= ranks; times *= 2) try_axes(times, 1);
  for (std::int64_t times = 2; now.pipeline * times <= ranks; times *= 2) try_axes(1, times);
  return changes;
}

// Several changes at once: all that is cheap, without and with ZeRO; then that on longer tensor and
// pipeline axes, the shortest first. Where those leave one data rank, ZeRO only costs.
std::vector<Change> combinations_of(const Recipe& recipe, int ranks) {
  const ParallelOptions& now = recipe.parallel;
  Change cheap;
  if (now.activation_checkpoint != ActivationCheckpoint::kFull) {
    cheap = checkpoint(ActivationCheckpoint::kFull);
  }
  if (recipe.train.micro_batch_size > 1) cheap = combined(cheap, microbatch(1));
  std::vector<Change> combinations;
  const auto combine = [&](const Change& axes) {
    const Change change = combined(cheap, axes);
    if (!change.text.empty()) combinations.push_back(change);
    const int best_zero = data_ranks(axes, recipe, ranks) > 1 ? 3 : 0;
    Change sharded = now.zero_stage != best_zero ? zero(best_zero) : Change();
    if (!sharded.text.empty()) combinations.push_back(combined(combined(cheap, sharded), axes));
    if (best_zero == 0 || !may_cut_each_microbatch(now)) return;
    sharded = combined(sharded, cut_each_microbatch());
    combinations.push_back(combined(combined(cheap, sharded), axes));
  };
  combine({});
  for (std::int64_t times = 2; now.tensor * now.pipeline * times <= ranks; times *= 2) {
    for (std::int64_t tensor = times; tensor >= 1; tensor /= 2) {
      if (const auto axes = longer_axes(now, tensor, times / tensor)) combine(*axes);
    }
  }
  return combinations;
}

// A job, and the memory of its hosts.
struct JobMemory {
  const Recipe& recipe;  // loaded
  int ranks;
  int ranks_per_node;
  const HostMemory& memory;

  [[nodiscard]] MemoryNeeds needs(const std::vector<RankKind>& kinds) const {
    return most_needs(kinds, ranks, ranks_per_node, memory);
  }
};

// Returns what counts of the needs: those of devices, where some are too small, else the host's.
using Measure = std::function<std::int64_t(const MemoryNeeds&)>;

std::int64_t of_host(const MemoryNeeds& needs) {
  return needs.host;
}

std::int64_t of_devices(const MemoryNeeds& needs) {
  return std::ranges::max(needs.devices);
}

// With the change, as far as `should_continue` has them worked out. Nothing if the recipe's layout
// does not allow it.
std::optional<MemoryNeeds> needs_with(
    const Change& change, const JobMemory& job,
    const std::function<bool(const MemoryNeeds&)>& should_continue) {
  Recipe recipe = job.recipe;
  change.apply(recipe);
  try {
    const Recipe resolved = resolve_for_run(recipe, job.ranks, job.memory.auto_precision);
    return job.needs(predict_job(resolved, job.memory.tensor_place(), [&](const auto& kinds) {
      return should_continue(job.needs(kinds));
    }));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// The change that needs the least, and how much; nothing where none is allowed. It is sought among
// those whose parameters take little first: of the others no steps have to be worked out.
std::optional<std::pair<const Change*, std::int64_t>> least_of(const std::vector<Change>& changes,
                                                               const JobMemory& job,
                                                               const Measure& measure) {
  const auto up_to = [&](std::int64_t limit) {
    return [&measure, limit](const MemoryNeeds& needs) { return measure(needs) <= limit; };
  };
  std::vector<std::pair<std::int64_t, const Change*>> at_least;
  for (const Change& change : changes) {
    const auto needs = needs_with(change, job, up_to(0));
    if (needs) at_least.emplace_back(measure(*needs), &change);
  }
  std::ranges::stable_sort(at_least, {}, &decltype(at_least)::value_type::first);
  const Change* best = nullptr;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [bound, change] : at_least) {
    if (bound >= least) break;
    const auto needs = needs_with(*change, job, up_to(least));
    if (!needs || measure(*needs) >= least) continue;
    best = change;
    least = measure(*needs);
  }
  if (best == nullptr) return std::nullopt;
  return std::pair(best, least);
}

// No run is refused because its memory cannot be told: then nothing is.
std::vector<RankKind> predict_if_possible(const Recipe& recipe, HostRanks here,
                                          const HostMemory& memory) {
  try {
    // What rank 0 receives is in the host's memory, beside devices.
    if (memory.bytes > 0) return predict_job(recipe, memory.tensor_place());
    return predict_ranks(recipe, here.first, here.count, memory.tensor_place());
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    log_warning("the memory of this run is not predicted: " +
                std::string(what.substr(0, what.find('\n'))));
    return {};
  }
}

// "rank 3 needs ", "ranks 0 to 3 need ", "ranks 0, 4 need ".
std::string who_needs(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]) + " needs ";
  const bool neighbours = ranks.back() - ranks.front() + 1 == std::ssize(ranks);
  return "ranks " +
         (neighbours ? std::to_string(ranks.front()) + " to " + std::to_string(ranks.back())
                     : ranges_text(ranks)) +
         " need ";
}

std::vector<int> ranks_on(const HostMemory& memory, HostRanks here, std::size_t device) {
  std::vector<int> ranks;
  for (int i = 0; i < here.count; ++i) {
    if (memory.device_of[static_cast<std::size_t>(i)] == device) ranks.push_back(here.first + i);
  }
  return ranks;
}

// Which memory is too small for whom; the devices' first. Nothing if all is well.
std::string shortage(const MemoryNeeds& needs, HostRanks here, const HostMemory& memory) {
  for (std::size_t i = 0; i < needs.devices.size(); ++i) {
    const DeviceRoom& room = memory.devices[i];
    if (room.total_bytes == 0 || needs.devices[i] <= static_cast<std::int64_t>(room.free_bytes)) {
      continue;
    }
    return who_needs(ranks_on(memory, here, i)) + bytes_text(needs.devices[i]) + " of " +
           room.name + ", which has " + format_bytes(room.total_bytes) +
           (room.free_bytes < room.total_bytes
                ? ", " + format_bytes(room.free_bytes) + " of them free"
                : "");
  }
  if (needs.fit(memory)) return "";
  std::vector<int> all(static_cast<std::size_t>(here.count));
  std::iota(all.begin(), all.end(), here.first);
  return who_needs(all) + bytes_text(needs.host) + " on this host, which has " +
         format_bytes(memory.bytes);
}

// Returns true if a device is too small as the recipe stands.
bool is_for_devices(const JobMemory& job) {
  if (job.memory.devices.empty()) return false;
  HostMemory devices = job.memory;
  devices.bytes = 0;
  const Recipe resolved = resolve_for_run(job.recipe, job.ranks, job.memory.auto_precision);
  return !job.needs(predict_job(resolved, TensorPlace::kDevice)).fit(devices);
}

}  // namespace

std::string memory_advice(const Recipe& loaded, int ranks, int ranks_per_node,
                          const HostMemory& memory) {
  const JobMemory job{loaded, ranks, ranks_per_node, memory};
  const bool for_devices = is_for_devices(job);
  const Measure measure = for_devices ? of_devices : of_host;
  if (!for_devices && ranks_per_node > 1 &&
      kProcessBytes * ranks_per_node >= static_cast<std::int64_t>(memory.bytes)) {
    return "start fewer ranks on a host: a process alone takes about " + bytes_text(kProcessBytes);
  }
  const auto fit = [&](const MemoryNeeds& needs) { return needs.fit(memory); };
  const std::vector<Change> combinations = combinations_of(loaded, ranks);
  for (const std::vector<Change>& changes : {changes_of(loaded, ranks), combinations}) {
    for (const Change& change : changes) {
      const auto needs = needs_with(change, job, fit);
      if (needs && fit(*needs)) {
        return "write " + change.text + ": that needs " + bytes_text(measure(*needs));
      }
    }
  }
  std::string how;
  if (const auto best = least_of(combinations, job, measure)) {
    how = ": even " + best->first->text + " needs " + bytes_text(best->second);
  }
  return "use a smaller model or seq_len, or more " +
         std::string(for_devices ? "devices" : "hosts") + how;
}

std::string advice_after_full_device(const Recipe& loaded, int ranks, int ranks_per_node,
                                     HostMemory memory) {
  if (memory.devices.empty() || !traits_of(loaded.model).has_meta_kernels) return "";
  try {
    const Recipe resolved = resolve_for_run(loaded, ranks, memory.auto_precision);
    const MemoryNeeds needs =
        most_needs(predict_job(resolved, TensorPlace::kDevice), ranks, ranks_per_node, memory);
    for (std::size_t i = 0; i < needs.devices.size(); ++i) {
      const auto less = static_cast<std::uint64_t>(needs.devices[i] * 3 / 4);
      memory.devices[i].total_bytes = memory.devices[i].free_bytes = less;
    }
    return memory_advice(loaded, ranks, ranks_per_node, memory) + "; as it is the run needs " +
           bytes_text(of_devices(needs));
  } catch (const std::exception&) {  // an operator without a shape: the run's own hint holds
    return "";
  }
}

void check_memory_fits(const Recipe& loaded, int ranks, HostRanks here, const HostMemory& memory) {
  if (!traits_of(loaded.model).has_meta_kernels) return;  // the first step tells
  if (memory.bytes == 0 && memory.devices.empty()) return;
  const Recipe resolved = resolve_for_run(loaded, ranks, memory.auto_precision);
  const auto kinds = predict_if_possible(resolved, here, memory);
  const std::string what =
      shortage(needs_of_ranks(kinds, here.first, here.count, memory), here, memory);
  if (what.empty()) return;
  throw UsageError("out of memory: " + what, memory_advice(loaded, ranks, here.count, memory));
}

}  // namespace troika
