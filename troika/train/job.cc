#include <ATen/ATen.h>
#include <troika/base/version.h>
#include <troika/config/recipe_file.h>
#include <troika/train/job.h>

#include <utility>

namespace troika {
namespace {

std::shared_ptr<Trace> make_trace(const Recipe& recipe, const World& world) {
  TraceOptions trace;
  trace.rank = world.rank;
  trace.host = world.host;
  if (const auto& steps = recipe.observe.trace_steps; steps.size() == 2) {
    trace.window = {steps[0], steps[1]};
  }
  return std::make_shared<Trace>(std::move(trace));
}

SessionOptions session_options(const Recipe& recipe, const std::filesystem::path& folder,
                               std::shared_ptr<Trace> trace) {
  SessionOptions options;
  options.engine = recipe.comm.engine;
  options.fold =
      recipe.train.deterministic ? EngineOptions::Fold::kInOrder : EngineOptions::Fold::kFastest;
  options.timeout = Seconds(recipe.comm.timeout_seconds);
  options.rendezvous_timeout = Seconds(recipe.comm.rendezvous_timeout_seconds);
  options.recorders = folder;
  options.trace = std::move(trace);
  return options;
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
    : start_timeout_(recipe.comm.rendezvous_timeout_seconds),
      storage_timeout_(recipe.checkpoint.timeout_seconds),
      mesh_(mesh_of(recipe)),
      trace_(make_trace(recipe, rendezvous.world())),
      session_(Session::connect(std::move(rendezvous), session_options(recipe, folder, trace_))),
      data_(session_.make_group(std::string(name_of(Axis::kData)),
                                mesh_.ranks_along(rank(), Axis::kData),
                                mesh_.coordinate(rank(), Axis::kData))) {}

std::vector<std::int64_t> Job::gather(std::int64_t value, const Call& call) const {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size()));
  const at::Tensor all = at::from_blob(values.data(), {size()}, at::kLong);
  world().all_gather(all, at::full({1}, value, at::kLong), call).wait();
  return values;
}

void Job::leave() {
  session_.leave(storage_timeout_);
}

}  // namespace troika
