#include <ATen/ATen.h>
#include <troika/base/file.h>
#include <troika/base/version.h>
#include <troika/comm/engines.h>
#include <troika/config/recipe_file.h>
#include <troika/train/job.h>

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

Job::Job(World world, const Recipe& recipe, const std::filesystem::path& folder)
    : timeout_(recipe.comm.timeout_seconds),
      mesh_(mesh_of(recipe)),
      rendezvous_(Rendezvous::join(std::move(world), {std::string(kVersion), to_toml(recipe)},
                                   Deadline::in(Seconds(recipe.comm.rendezvous_timeout_seconds)))),
      observers_(make_observers(recipe, rendezvous_.world(), folder)) {
  EngineOptions options;
  options.kind = recipe.comm.engine;
  options.store = size() > 1 ? &rendezvous_.store() : nullptr;
  options.address = members()[static_cast<std::size_t>(rank())].address;
  options.fold =
      recipe.train.deterministic ? EngineOptions::Fold::kInOrder : EngineOptions::Fold::kFastest;
  options.rendezvous_timeout = Seconds(recipe.comm.rendezvous_timeout_seconds);
  options.observers = observers_;
  options.recorders = folder;
  data_ = make_group(std::string(name_of(Axis::kData)), mesh_.ranks_along(rank(), Axis::kData),
                     mesh_.coordinate(rank(), Axis::kData), options);
}

std::int64_t Job::agree(std::int64_t value, std::string_view label) const {
  const at::Tensor shared = at::full({1}, value, at::kLong);
  data_.broadcast(shared, 0, {label, deadline()}).wait();
  return shared.item<std::int64_t>();
}

void Job::leave() {
  rendezvous_.leave(deadline());
}

}  // namespace troika
