#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/simulate/passes.h>
#include <troika/simulate/sync_simulation.h>
#include <troika/sync/local_sync.h>

#include <algorithm>

namespace troika {

WorkerStay SimulatedJob::stay(int worker) const {
  return stays.empty() ? WorkerStay() : stays.at(static_cast<std::size_t>(worker));
}

int SimulatedJob::starting() const {
  const auto count =
      std::ranges::count_if(stays, [](const WorkerStay& stay) { return stay.joins == 0; });
  return stays.empty() ? workers() : static_cast<int>(count);
}

double SimulatedJob::seconds(int worker, std::int64_t samples,
                             std::int64_t global_batch_size) const {
  const double part = static_cast<double>(global_batch_size) / starting();
  return pass_seconds * static_cast<double>(samples) / part /
         speeds[static_cast<std::size_t>(worker)];
}

double SyncSimulation::waiting() const {
  double busy = 0, all = 0;
  for (const SimulatedWorker& each : workers) {
    busy += each.busy;
    all += std::max(0., std::min(each.left, seconds) - each.joined);
  }
  return all > 0 ? std::max(0., 1 - busy / all) : 0;
}

void check_simulated(const Recipe& recipe, const SimulatedJob& job) {
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw UsageError(what, hint);
  };
  const ParallelOptions& parallel = recipe.parallel;
  if (parallel.tensor > 1 || parallel.pipeline > 1 || parallel.zero_stage > 0) {
    refuse("a simulated worker holds the whole model",
           "write tensor = 1, pipeline = 1 and zero_stage = 0 in [parallel]");
  }
  if (recipe.compress.name() != "none") {
    refuse("[compress] kind = \"" + std::string(recipe.compress.name()) + "\" is not simulated",
           "write [compress] kind = \"none\"");
  }
  if (recipe.train.precision == Precision::kFloat16) {
    refuse("precision = \"fp16\" is not simulated", "write precision = \"bf16\"");
  }
  if (recipe.sync.kind().island(recipe.sync.options(), 1) > 1) {
    refuse("each simulated worker is an island of its own", "write [sync] island = 1");
  }
  if (recipe.sync.holds<LocalOptions>() && recipe.sync.as<LocalOptions>().fragments > 1) {
    refuse("[sync] fragments above 1 are not simulated", "write fragments = 1");
  }
  if (!job.stays.empty() && !recipe.sync.kind().servers(recipe.sync.options())) {
    refuse("workers come and go only with [sync] kind = \"server\", and this is kind = \"" +
               std::string(recipe.sync.name()) + "\"",
           "leave out --join and --leave, or write kind=server");
  }
  if (recipe.train.global_batch_size < job.starting()) {
    refuse("global_batch_size = " + std::to_string(recipe.train.global_batch_size) +
               " is less than " + plural(job.starting(), "worker"),
           "raise train.global_batch_size, or take fewer --workers");
  }
}

bool evaluates_after(const Recipe& recipe, std::int64_t step) {
  const std::int64_t every = recipe.train.evaluate_every_steps;
  return every > 0 && (step % every == 0 || step == recipe.train.steps);
}

SyncSimulation simulate_sync(const Recipe& recipe, const SimulatedJob& job, Passes& passes) {
  const at::NoGradGuard no_autograd;
  if (const auto settings = recipe.sync.kind().servers(recipe.sync.options())) {
    if (settings->local_steps == 0) return simulate_servers(recipe, job, passes);
    Passes own(recipe, /*takes_local_steps=*/true);
    return simulate_servers(recipe, job, own);
  }
  return simulate_groups(recipe, job, passes);
}

}  // namespace troika
