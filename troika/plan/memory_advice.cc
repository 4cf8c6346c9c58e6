#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/plan/memory_advice.h>
#include <troika/train/run.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
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
    for (int stage = static_cast<int>(now.zero_stage) + 1; stage <= 3; ++stage) {
      changes.push_back(zero(stage));
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
    if (now.zero_stage != best_zero)
      combinations.push_back(combined(combined(cheap, zero(best_zero)), axes));
  };
  combine({});
  for (std::int64_t times = 2; now.tensor * now.pipeline * times <= ranks; times *= 2) {
    for (std::int64_t tensor = times; tensor >= 1; tensor /= 2) {
      if (const auto axes = longer_axes(now, tensor, times / tensor)) combine(*axes);
    }
  }
  return combinations;
}

// Of the host that needs the most; if that is more than `limit`, no more than it takes to say so.
// Nothing if the recipe's layout does not allow the change.
std::optional<std::int64_t> bytes_with(const Change& change, Recipe recipe, int ranks,
                                       int ranks_per_node, std::int64_t limit) {
  change.apply(recipe);
  const auto bytes_of = [=](const std::vector<RankKind>& kinds) {
    return max_host_bytes(kinds, ranks, ranks_per_node);
  };
  try {
    const Recipe resolved = resolve_for_run(recipe, ranks);
    return bytes_of(
        predict_job(resolved, [&](const auto& kinds) { return bytes_of(kinds) <= limit; }));
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// The change that needs the least, and how much; nothing where none is allowed. It is sought among
// those whose parameters take little first: of the others no steps have to be worked out.
std::optional<std::pair<const Change*, std::int64_t>> least_of(const std::vector<Change>& changes,
                                                               const Recipe& recipe, int ranks,
                                                               int ranks_per_node) {
  std::vector<std::pair<std::int64_t, const Change*>> at_least;
  for (const Change& change : changes) {
    const auto bytes = bytes_with(change, recipe, ranks, ranks_per_node, 0);
    if (bytes) at_least.emplace_back(*bytes, &change);
  }
  std::ranges::stable_sort(at_least, {}, &decltype(at_least)::value_type::first);
  const Change* best = nullptr;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [bound, change] : at_least) {
    if (bound >= least) break;
    const auto bytes = bytes_with(*change, recipe, ranks, ranks_per_node, least);
    if (!bytes || *bytes >= least) continue;
    best = change;
    least = *bytes;
  }
  if (best == nullptr) return std::nullopt;
  return std::pair(best, least);
}

// No run is refused because its memory cannot be told: then nothing is.
std::vector<RankKind> predict_if_possible(const Recipe& recipe) {
  try {
    return predict_job(recipe);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    log_warning("the memory of this run is not predicted: " +
                std::string(what.substr(0, what.find('\n'))));
    return {};
  }
}

}  // namespace

std::string memory_advice(const Recipe& loaded, int ranks, int ranks_per_node,
                          std::uint64_t host_bytes) {
  const auto limit = static_cast<std::int64_t>(host_bytes);
  if (ranks_per_node > 1 && kProcessBytes * ranks_per_node >= limit) {
    return "start fewer ranks on a host: a process alone takes about " + bytes_text(kProcessBytes);
  }
  const auto write = [](const Change& change, std::int64_t bytes) {
    return "write " + change.text + ": that needs " + bytes_text(bytes);
  };
  const std::vector<Change> combinations = combinations_of(loaded, ranks);
  for (const std::vector<Change>& changes : {changes_of(loaded, ranks), combinations}) {
    for (const Change& change : changes) {
      const auto bytes = bytes_with(change, loaded, ranks, ranks_per_node, limit);
      if (bytes && *bytes <= limit) return write(change, *bytes);
    }
  }
  std::string how;
  if (const auto best = least_of(combinations, loaded, ranks, ranks_per_node)) {
    how = ": even " + best->first->text + " needs " + bytes_text(best->second);
  }
  return "use a smaller model or seq_len, or more hosts" + how;
}

void check_memory_fits(const Recipe& loaded, int ranks, HostRanks here, std::uint64_t host_bytes) {
  if (!traits_of(loaded.model).has_meta_kernels) return;  // the first step tells
  if (host_bytes == 0) return;
  const auto kinds = predict_if_possible(resolve_for_run(loaded, ranks));
  const std::int64_t needed = bytes_of_ranks(kinds, here.first, here.count);
  if (needed <= static_cast<std::int64_t>(host_bytes)) return;
  const std::string who = here.count == 1
                              ? "rank " + std::to_string(here.first) + " needs "
                              : "ranks " + std::to_string(here.first) + " to " +
                                    std::to_string(here.first + here.count - 1) + " need ";
  throw UsageError("out of memory: " + who + bytes_text(needed) + " on this host, which has " +
                       format_bytes(host_bytes),
                   memory_advice(loaded, ranks, here.count, host_bytes));
}

}  // namespace troika
