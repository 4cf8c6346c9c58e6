#include <ATen/ATen.h>
#include <troika/base/failure.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/timeouts.h>
#include <troika/session/build_version.h>
#include <troika/session/consensus.h>
#include <troika/train/job.h>
#include <troika/train/model_part.h>

#include <algorithm>
#include <map>
#include <string_view>
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

std::vector<std::string> hosts_of(const Rendezvous& rendezvous) {
  std::vector<std::string> hosts;
  for (const Member& member : rendezvous.members()) hosts.push_back(member.host_identity);
  return hosts;
}

SessionOptions session_options(const Recipe& recipe, const std::vector<std::string>& hosts,
                               const std::filesystem::path& folder, std::shared_ptr<Trace> trace) {
  SessionOptions options;
  options.engine = recipe.comm.engine;
  options.reduction_order = reduction_order_of(recipe, hosts);
  options.timeout = step_timeout(recipe);
  options.rendezvous_timeout = start_timeout(recipe);
  options.recorders = folder;
  options.device = recipe.train.device;
  options.trace = std::move(trace);
  return options;
}

Session connect(Rendezvous rendezvous, const Recipe& recipe, const std::filesystem::path& folder,
                std::shared_ptr<Trace> trace) {
  const SessionOptions options =
      session_options(recipe, hosts_of(rendezvous), folder, std::move(trace));
  return Session::connect(std::move(rendezvous), options);
}

// Collective.
at::Device agreed_device(const Session& session, const std::string& word) {
  const at::Device device = session.device_for(word, "train.device");
  agree_on_kind(session, device);
  return device;
}

// By member of a group: equal numbers for those who share a host, in the order of appearance.
std::vector<std::size_t> pattern_of(const std::vector<int>& ranks,
                                    const std::vector<std::string>& hosts) {
  std::map<std::string_view, std::size_t> numbers;
  std::vector<std::size_t> pattern;
  for (const int rank : ranks) {
    const std::string_view host = hosts[static_cast<std::size_t>(rank)];
    pattern.push_back(numbers.emplace(host, numbers.size()).first->second);
  }
  return pattern;
}

// Returns true if the groups whose sums several ranks hold are spread over the hosts in the same
// pattern, stage by stage. Sums over the pipeline axis are exact in any order: one rank has another
// value than zero.
bool has_uniform_placement(const Recipe& recipe, const std::vector<std::string>& hosts) {
  using Member = std::vector<int> GroupRanks::*;
  const auto alike = [&](const GroupRanks& own, Member sums, Member holders) {
    if ((own.*sums).size() <= 2) return true;  // of two terms there is one sum
    const GroupRanks first = groups_of(recipe, (own.*holders).front());
    return pattern_of(own.*sums, hosts) == pattern_of(first.*sums, hosts);
  };
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const GroupRanks own = groups_of(recipe, rank);
    // Gradients of what is not split, and norms for clipping.
    if (!alike(own, &GroupRanks::data, &GroupRanks::tensor)) return false;
    if (!alike(own, &GroupRanks::tensor, &GroupRanks::data)) return false;
    // Stage 0 has whole gradients, summed in two steps where `shard` is given.
    if (recipe.parallel.zero_stage == 0 && !alike(own, &GroupRanks::replicate, &GroupRanks::data)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Mesh mesh_of(const Recipe& recipe) {
  const ParallelOptions& parallel = recipe.parallel;
  return Mesh(Coordinates{static_cast<int>(parallel.islands), static_cast<int>(parallel.pipeline),
                          static_cast<int>(parallel.data.value_or(1)),
                          static_cast<int>(parallel.context), static_cast<int>(parallel.tensor)});
}

int replica_of(const Mesh& mesh, int rank) {
  return mesh.coordinate(rank, Axis::kIsland) * mesh.size(Axis::kData) +
         mesh.coordinate(rank, Axis::kData);
}

GroupRanks groups_of(const Recipe& recipe, int rank) {
  const Mesh mesh = mesh_of(recipe);
  GroupRanks groups;
  groups.data = mesh.ranks_along(rank, Axis::kData);
  groups.tensor = mesh.ranks_along(rank, Axis::kTensor);
  groups.pipeline = mesh.ranks_along(rank, Axis::kPipeline);
  groups.islands = mesh.ranks_along(rank, Axis::kIsland);
  const int of_island = mesh.size() / mesh.size(Axis::kIsland);
  for (int i = 0; i < of_island; ++i) groups.island.push_back(rank / of_island * of_island + i);

  const auto data_rank = static_cast<std::size_t>(mesh.coordinate(rank, Axis::kData));
  const auto width = recipe.parallel.shard > 0 ? static_cast<std::size_t>(recipe.parallel.shard)
                                               : groups.data.size();
  for (std::size_t i = 0; i < groups.data.size(); ++i) {
    if (i / width == data_rank / width) groups.shard.push_back(groups.data[i]);
    if (i % width == data_rank % width) groups.replicate.push_back(groups.data[i]);
  }

  groups.embedding = {rank};
  if (!has_embedding_group(recipe)) return groups;
  const int first = groups.pipeline.front(), last = groups.pipeline.back();
  if (rank == first || rank == last) groups.embedding = {first, last};
  return groups;
}

bool has_embedding_group(const Recipe& recipe) {
  if (recipe.parallel.pipeline == 1) return false;
  if (!traits_of(recipe.model).ties_first_and_last) return false;
  const std::vector<int> first_ranks = stages_of(recipe.parallel, 0);
  const auto last = recipe.parallel.pipeline * virtual_stages_per_rank(recipe.parallel) - 1;
  return std::ranges::count(first_ranks, last) == 0;  // in a V they are on one rank
}

EngineOptions::ReductionOrder reduction_order_of(const Recipe& recipe,
                                                 const std::vector<std::string>& hosts) {
  const bool in_order = recipe.train.deterministic || has_embedding_group(recipe) ||
                        !has_uniform_placement(recipe, hosts);
  return in_order ? EngineOptions::ReductionOrder::kInOrder
                  : EngineOptions::ReductionOrder::kFastest;
}

Rendezvous join_rendezvous(World world, const Recipe& recipe) {
  return Rendezvous::join(std::move(world), {build_version(), to_toml(recipe)},
                          Deadline::in(start_timeout(recipe)));
}

Job::Job(Rendezvous rendezvous, const Recipe& recipe, const std::filesystem::path& folder)
    : start_timeout_(start_timeout(recipe)),
      storage_timeout_(recipe.checkpoint.timeout_seconds),
      mesh_(mesh_of(recipe)),
      trace_(make_trace(recipe, rendezvous.world())),
      session_(connect(std::move(rendezvous), recipe, folder, trace_)),
      device_(agreed_device(session_, recipe.train.device)) {
  const GroupRanks groups = groups_of(recipe, rank());
  groups_.data = make_group("data", groups.data);
  groups_.tensor = make_group("tensor", groups.tensor);
  groups_.pipeline = make_group("pipeline", groups.pipeline);
  // The whole data axis is a group already.
  groups_.shard =
      groups.shard == groups.data ? groups_.data : make_group("data shard", groups.shard);
  groups_.replicate =
      groups.replicate == groups.data ? groups_.data : make_group("data replica", groups.replicate);
  groups_.embedding = make_group("tied stages", groups.embedding);
  groups_.world = session_.world();
  groups_.islands = make_group("islands", groups.islands);
  // All are one island where replicas stay equal.
  groups_.island = groups.islands.size() == 1 ? groups_.world : make_group("island", groups.island);
}

Group Job::make_group(std::string_view axis, const std::vector<int>& ranks) const {
  const auto index = std::ranges::find(ranks, rank()) - ranks.begin();
  return session_.make_group(std::string(axis), ranks, static_cast<int>(index));
}

std::vector<std::int64_t> Job::gather(std::int64_t value, const Call& call) const {
  const at::Tensor all = at::empty({size()}, at::kLong);
  world().all_gather(all, at::full({1}, value, at::kLong), call).wait();
  const auto* values = all.const_data_ptr<std::int64_t>();
  return {values, values + size()};
}

TrainerContext Job::context() const {
  TrainerContext context;
  context.groups = groups_;
  context.timeout = timeout();
  context.trace = trace_.get();
  context.device = device_;
  return context;
}

void Job::abort(const Error& error) const {
  session_.abort(encode(failure_of(error)));
}

void Job::leave() {
  session_.leave(storage_timeout_);
}

}  // namespace troika
