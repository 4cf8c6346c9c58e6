// A whole run on one rank, from the recipe to the saved model.
#pragma once

#include <troika/config/origins.h>
#include <troika/data/dataset.h>
#include <troika/device/choose.h>
#include <troika/observe/progress.h>
#include <troika/recipe/recipe.h>
#include <troika/rendezvous/world.h>
#include <troika/server/compared_data.h>
#include <troika/train/claim.h>
#include <troika/train/trainer_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troika {

struct RunOptions {
  Existing existing = Existing::kRefuseOthers;
  ProgressOptions progress;
  // SIGINT, SIGTERM, SIGHUP and SIGUSR1 to any rank end the run after the step that is under way,
  // with a checkpoint of that step; run_training() then throws InterruptedError
  // (SIGINT) or CheckpointedError.
  bool stop_on_signals = false;
  // Takes the place of the recipe's sync: TrainerContext::make_sync.
  std::function<std::unique_ptr<ReplicaSync>(Arena&, const TrainerContext&)> make_sync = {};
  // Trains as a worker of several ranks, which it starts: they join the job of this coordinator, at
  // this place among its workers. Where parameters lie on servers.
  // `host` is its place among the workers of this host.
  std::function<void(const std::string& coordinator, int place, HostPosition host)> train_island =
      {};
  // A function that is called on each rank with the run's data, before the model is made.
  std::function<void(std::shared_ptr<const Dataset>)> on_data = {};
  // Returns, after each step and each error, which checkpoints are in doubt for the data of
  // processes that are no ranks of this run.
  std::function<DataDoubt()> doubt = {};
  // Takes the place of the recipe's optimiser: TrainerContext::optimizer.
  std::optional<OptimizerOptions> optimizer = {};
};

struct RunReport {
  bool finished_before = false;  // nothing was trained: the run was there already
  // One line: last metrics, totals, world_size, mesh and ranks. On rank 0 only, else empty.
  std::string json;
};

// Collective over `world`. `recipe` is as loaded; it is resolved for the size of the world here.
// Messages go to the log, progress to stderr. Throws every typed error there is; what was written
// until then stays, and each file is whole.
[[nodiscard]] RunReport run_training(const Recipe& recipe, const World& world,
                                     const RunOptions& options);

// Returns the recipe for `ranks` ranks on this machine: axes and precision fixed, paths and batch
// checked. Errors name the places in `origins`. `own` is that of a rank on this host, whose
// device the precision is for.
[[nodiscard]] Recipe resolve_for_run(const Recipe& recipe, int ranks,
                                     const Origins& origins = Origins(), HostPosition own = {});

// Returns the same for devices on which the precision "auto" is `automatic`, wherever they are.
[[nodiscard]] Recipe resolve_for_run(const Recipe& recipe, int ranks, Precision automatic,
                                     const Origins& origins = Origins());

}  // namespace troika
