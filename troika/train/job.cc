#include <ATen/ATen.h>
#include <troika/base/file.h>
#include <troika/base/version.h>
#include <troika/comm/engines.h>
#include <troika/config/recipe_file.h>
#include <troika/train/job.h>

#include <numeric>
#include <utility>

namespace troika {
namespace {

GroupObservers make_observers(const Recipe& recipe, const World& world,
                              const std::filesystem::path& folder) {
  TraceOptions trace;
  trace.rank = world.rank;
  trace.host = world.host;
  if (const auto& steps = recipe.observe.trace_steps; steps.size() == 2) {
    trace.window = {steps[0], steps[1]};
  }
  if (world.size == 1) return {Recorder::none(), std::make_shared<Trace>(std::move(trace))};
  make_folders(folder);
  return {Recorder::create(recorder_path(folder, world.rank), world.rank, world.host),
          std::make_shared<Trace>(std::move(trace))};
}

}  // namespace

Mesh mesh_of(const Recipe& recipe) {
  const ParallelRecipe& parallel = recipe.parallel;
  return Mesh(Coordinates{static_cast<int>(parallel.pipeline),
                          static_cast<int>(parallel.data.value_or(1)),
                          static_cast<int>(parallel.context), static_cast<int>(parallel.tensor)});
}

Rendezvous meet(World world, const Recipe& recipe) {
  return Rendezvous::join(std::move(world), {std::string(kVersion), to_toml(recipe)},
                          Deadline::in(Seconds(recipe.comm.rendezvous_timeout_seconds)));
}

Job::Job(Rendezvous rendezvous, const Recipe& recipe, const std::filesystem::path& folder)
    : timeout_(recipe.comm.timeout_seconds),
      start_timeout_(recipe.comm.rendezvous_timeout_seconds),
      storage_timeout_(recipe.checkpoint.timeout_seconds),
      mesh_(mesh_of(recipe)),
      rendezvous_(std::move(rendezvous)),
      observers_(make_observers(recipe, rendezvous_.world(), folder)) {
  EngineOptions options;
  options.kind = recipe.comm.engine;
  options.store = size() > 1 ? &rendezvous_.store() : nullptr;
  options.address = members()[static_cast<std::size_t>(rank())].address;
  options.fold =
      recipe.train.deterministic ? EngineOptions::Fold::kInOrder : EngineOptions::Fold::kFastest;
  options.rendezvous_timeout = start_timeout_;
  options.observers = observers_;
  options.recorders = folder;
  std::vector<int> everybody(static_cast<std::size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  world_ = make_group("world", std::move(everybody), rank(), options);
  data_ = make_group(std::string(name_of(Axis::kData)), mesh_.ranks_along(rank(), Axis::kData),
                     mesh_.coordinate(rank(), Axis::kData), options);
  if (rendezvous_.world().store_host != StoreHost::kLauncher || size() == 1) return;
  // A rank may wait for one that is gone without a connection to it; the launcher knows first.
  watch_ = std::make_unique<StoreWatch>(
      rendezvous_.store(), abort_key(rank()),
      [world = world_, data = data_](const std::string& reason) {
        world.abort(reason);
        data.abort(reason);
      },
      [](const std::string&) {});
}

std::vector<std::int64_t> Job::gather(std::int64_t value, const Call& call) const {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size()));
  const at::Tensor all = at::from_blob(values.data(), {size()}, at::kLong);
  world_.all_gather(all, at::full({1}, value, at::kLong), call).wait();
  return values;
}

void Job::leave() {
  rendezvous_.leave(storage_deadline());
}

}  // namespace troika
