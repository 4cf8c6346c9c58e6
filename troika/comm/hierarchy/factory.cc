// Makes the engine across hosts: its parts are groups of their own, which meet under their own
// keys.
#include <troika/comm/factory.h>
#include <troika/comm/hierarchy/engine.h>
#include <troika/comm/meeting.h>

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

std::shared_ptr<GroupEngine> make_hierarchy_engine(const EngineContext& context, Meeting& meeting,
                                                   std::span<const int> numbers,
                                                   MakeEngine make_between, std::string_view name) {
  const Hosts hosts(numbers);
  const int host = hosts.host_of(context.index), place = hosts.place_of(context.index);
  HierarchyEngine::Parts parts;
  if (const auto& neighbours = hosts.members(host); neighbours.size() > 1) {
    const std::vector<int> ranks = ranks_of(context, neighbours);
    const EngineContext inside{context.axis, ranks, place, context.options};
    Meeting there(inside, meeting, "host/" + std::to_string(host));
    parts.inside = make_shm_engine(inside, there);
  }
  if (place < hosts.carriers()) {
    std::vector<int> carriers;
    for (int each = 0; each < hosts.count(); ++each) {
      carriers.push_back(hosts.members(each)[static_cast<std::size_t>(place)]);
    }
    const std::vector<int> ranks = ranks_of(context, carriers);
    const EngineContext between{context.axis, ranks, host, context.options};
    Meeting there(between, meeting, "place/" + std::to_string(place));
    parts.between = make_between(between, there);
  }
  parts.all = make_between(context, meeting);
  parts.recorder = context.options.observers.recorder;
  return std::make_shared<HierarchyEngine>(
      name, meeting.members(), hosts, std::move(parts),
      ReasonBoard(meeting.store().with_prefix("reason/hosts"), context.index));
}

}  // namespace troika::detail
