// Makes the engine across hosts: its parts are groups of their own, which meet under their own
// keys.
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/hierarchical/engine.h>
#include <troika/comm/hierarchical/factory.h>

#include <string>

namespace troika::detail {
namespace {

// Positions in the group as ranks of the world.
std::vector<int> ranks_of(const EngineContext& context, const std::vector<int>& members) {
  std::vector<int> ranks;
  for (const int member : members) {
    ranks.push_back(context.ranks[static_cast<std::size_t>(member)]);
  }
  return ranks;
}

}  // namespace

std::shared_ptr<GroupEngine> make_hierarchical_engine(const EngineContext& context,
                                                      GroupRendezvous& rendezvous,
                                                      std::span<const int> numbers,
                                                      const EngineKind& inside,
                                                      const EngineKind& between) {
  const Hosts hosts(numbers);
  const int host = hosts.host_of(context.index), local_index = hosts.local_index_of(context.index);
  HierarchyEngine::SubEngines engines;
  if (const auto& neighbours = hosts.members(host); neighbours.size() > 1) {
    const std::vector<int> ranks = ranks_of(context, neighbours);
    const EngineContext here{context.axis, ranks, local_index, context.options};
    GroupRendezvous there(here, rendezvous, "host/" + std::to_string(host));
    engines.inside = inside.make(here, &there);
  }
  if (local_index < hosts.leaders()) {
    std::vector<int> leaders;
    for (int each = 0; each < hosts.count(); ++each) {
      leaders.push_back(hosts.members(each)[static_cast<std::size_t>(local_index)]);
    }
    const std::vector<int> ranks = ranks_of(context, leaders);
    const EngineContext across{context.axis, ranks, host, context.options};
    GroupRendezvous there(across, rendezvous, "place/" + std::to_string(local_index));
    engines.between = between.make(across, &there);
  }
  engines.all = between.make(context, &rendezvous);
  engines.recorder = context.options.observers.recorder;
  return std::make_shared<HierarchyEngine>(
      std::string(inside.name) + "+" + std::string(between.name), rendezvous.members(), hosts,
      std::move(engines),
      AbortStore(rendezvous.store().with_prefix("reason/hosts"), context.index));
}

}  // namespace troika::detail
