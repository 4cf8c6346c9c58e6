#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/config/choices.h>
#include <troika/observe/log.h>
#include <troika/train/memory_advice.h>
#include <troika/train/run.h>

#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
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

// Takes its ranks from the data axis; nothing where that has too few.
std::optional<Change> axis(const Recipe& now, const std::string& name,
                           std::int64_t ParallelRecipe::*size, std::int64_t ranks) {
  const std::int64_t factor = ranks / (now.parallel.*size);
  std::optional<std::int64_t> data = now.parallel.data;
  if (data && *data % factor != 0) return std::nullopt;
  if (data) *data /= factor;
  return Change{
      name + " = " + std::to_string(ranks) + (data ? ", data = " + std::to_string(*data) : ""),
      [=](Recipe& recipe) {
        recipe.parallel.*size = ranks;
        recipe.parallel.data = data;
      }};
}

// Only changes that change something.
std::vector<Change> changes_of(const Recipe& recipe, int ranks) {
  std::vector<Change> changes;
  const ActivationCheckpoint now = recipe.parallel.activation_checkpoint;
  if (now == ActivationCheckpoint::kNone && recipe.model.kind == ModelKind::kGpt) {
    changes.push_back(checkpoint(ActivationCheckpoint::kSelective));
  }
  if (now != ActivationCheckpoint::kFull)
    changes.push_back(checkpoint(ActivationCheckpoint::kFull));
  for (std::int64_t size = recipe.train.micro_batch_size / 2; size >= 1; size /= 2) {
    changes.push_back(microbatch(size));
  }
  if (recipe.parallel.data.value_or(2) > 1) {
    for (int stage = static_cast<int>(recipe.parallel.zero_stage) + 1; stage <= 3; ++stage) {
      changes.push_back(zero(stage));
    }
  }
  const auto try_axis = [&](const std::string& name, std::int64_t ParallelRecipe::*member) {
    for (std::int64_t size = recipe.parallel.*member * 2; size <= ranks; size *= 2) {
      if (auto change = axis(recipe, name, member, size)) changes.push_back(*std::move(change));
    }
  };
  try_axis("tensor", &ParallelRecipe::tensor);
  try_axis("pipeline", &ParallelRecipe::pipeline);
  return changes;
}

Change together(const Recipe& recipe) {
  std::vector<Change> all = {checkpoint(ActivationCheckpoint::kFull), microbatch(1)};
  if (recipe.parallel.data.value_or(2) > 1) all.push_back(zero(3));
  std::string text;
  for (const Change& change : all) text += (text.empty() ? "" : ", ") + change.text;
  return {text, [all](Recipe& changed) {
            for (const Change& change : all) change.apply(changed);
          }};
}

// Of the host that needs the most; if that is more than `limit`, no more than it takes to say so.
// Nothing if the recipe's layout does not allow the change.
std::optional<std::int64_t> bytes_with(const Change& change, Recipe recipe, int ranks,
                                       int ranks_per_node, std::int64_t limit) {
  change.apply(recipe);
  const auto bytes_of = [=](const std::vector<RankKind>& kinds) {
    return bytes_of_neediest_host(kinds, ranks, ranks_per_node);
  };
  try {
    const Recipe resolved = resolve_for_run(recipe, ranks);
    return bytes_of(
        predict_job(resolved, [&](const auto& kinds) { return bytes_of(kinds) <= limit; }));
  } catch (const UsageError&) {
    return std::nullopt;
  }
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
  const auto write = [](const Change& change, std::int64_t bytes) {
    return "write " + change.text + ": that needs " + bytes_text(bytes);
  };
  for (const Change& change : changes_of(loaded, ranks)) {
    const auto bytes = bytes_with(change, loaded, ranks, ranks_per_node, limit);
    if (bytes && *bytes <= limit) return write(change, *bytes);
  }
  const Change last = together(loaded);
  const auto bytes =
      bytes_with(last, loaded, ranks, ranks_per_node, std::numeric_limits<std::int64_t>::max());
  if (bytes && *bytes <= limit) return write(last, *bytes);
  return "use a smaller model or seq_len, or more hosts: even " + last.text + " needs " +
         (bytes ? bytes_text(*bytes) : "more");
}

void refuse_unless_it_fits(const Recipe& loaded, int ranks, HostRanks here,
                           std::uint64_t host_bytes) {
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
