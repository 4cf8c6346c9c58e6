#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/cli/checkpoint_step.h>
#include <troika/train/best_checkpoints.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <vector>

namespace troika {
namespace {

constexpr const char* kBest = "best";

std::int64_t best_step(const CheckpointFolder& folder, const std::vector<std::int64_t>& steps) {
  std::vector<RatedStep> rated;
  std::string metric;
  for (const std::int64_t step : steps) {
    try {
      const Manifest manifest = folder.read(step);
      const auto figure = held_out_figure(manifest);
      if (!figure) continue;
      if (rated.empty()) metric = metric_of(manifest);
      rated.push_back({*figure, step});
    } catch (const DataError&) {  // NOLINT(bugprone-empty-catch): verify tells of it
    }
  }
  if (rated.empty()) {
    throw DataError("no checkpoint in " + folder.shown() + " says how good its model is",
                    "a run writes it into the checkpoints of steps after which it evaluates; "
                    "checkpoint.keep_best takes one after each of the best evaluations");
  }
  sort_best_first(rated, metric);
  return rated.front().step;
}

}  // namespace

std::int64_t step_asked(const std::string& text, const CheckpointFolder& folder) {
  std::int64_t step = 0;
  const char* end = text.data() + text.size();
  const auto [after, problem] = std::from_chars(text.data(), end, step);
  const bool is_number = problem == std::errc() && after == end && step >= 0;
  if (!is_number && text != kBest) {
    throw UsageError("--step: " + quote(text) + " is no step", "give a number, or \"best\"");
  }
  std::vector<std::int64_t> steps = folder.steps();
  if (steps.empty()) throw DataError("no checkpoint in " + folder.shown());
  if (!is_number) return best_step(folder, steps);
  if (std::ranges::count(steps, step) > 0) return step;
  constexpr std::size_t kShown = 10;
  std::vector<std::string> there;
  for (const std::int64_t each : steps) there.push_back(std::to_string(each));
  const std::size_t shown = std::min(kShown, there.size());
  std::string list = join(std::span(there).first(shown), ", ");
  if (shown < there.size())
    list.append(" and ").append(std::to_string(there.size() - shown)).append(" more");
  throw DataError("no checkpoint of step " + text + " in " + folder.shown(),
                  "there " +
                      std::string(there.size() == 1 ? "is that of step " : "are those of steps ") +
                      list);
}

}  // namespace troika
