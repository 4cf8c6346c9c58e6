#include <troika/base/error.h>
#include <troika/base/open_file_limit.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/engines.h>
#include <troika/comm/factory.h>
#include <troika/comm/hierarchical/hosts.h>

#include <algorithm>
#include <set>

namespace troika {

std::vector<EngineFacts> list_engines() {
  return {detail::shm_facts(), detail::gloo_facts(), detail::mpi_facts(), detail::nccl_facts(),
          detail::fake_facts()};
}

EngineKind resolve_engine(EngineKind kind) {
  const std::vector<EngineFacts> engines = list_engines();
  if (kind == EngineKind::kAuto) {
    const auto usable = std::find_if(engines.begin(), engines.end(), [](const EngineFacts& each) {
      return each.usable && each.kind != EngineKind::kFake && each.kind != EngineKind::kNccl;
    });
    check(usable != engines.end(), "gloo is always usable");
    return usable->kind;
  }
  const auto chosen = std::find_if(engines.begin(), engines.end(),
                                   [&](const EngineFacts& each) { return each.kind == kind; });
  check(chosen != engines.end(), "every engine is listed");
  if (!chosen->usable) {
    throw UsageError("engine " + chosen->name +
                         (chosen->built ? " cannot be used: " : " is not built: ") + chosen->reason,
                     "use the engine gloo (comm.engine, SessionOptions::engine)");
  }
  return kind;
}

namespace {

using detail::EngineContext;
using detail::GroupRendezvous;

// What `auto` takes: shared memory where all members share a host; else what speaks between hosts,
// with shared memory inside them where some share one. That reduces host by host, so not if the
// order of members is asked for.
std::shared_ptr<GroupEngine> make_fastest_engine(const EngineContext& context,
                                                 GroupRendezvous& rendezvous) {
  const EngineOptions& options = context.options;
  std::vector<int> hosts;
  if (!options.host_of) hosts = detail::find_hosts(rendezvous, context.index);
  for (const int rank : context.ranks) {
    if (options.host_of) hosts.push_back(options.host_of(rank));
  }
  const auto different = std::set<int>(hosts.begin(), hosts.end()).size();
  if (different == 1) return detail::make_shm_engine(context, rendezvous);
  const bool mpi = detail::can_use_mpi(rendezvous);
  const auto make_between = mpi ? detail::make_mpi_engine : detail::make_gloo_engine;
  if (different == hosts.size() ||
      options.reduction_order == EngineOptions::ReductionOrder::kInOrder) {
    return make_between(context, rendezvous);
  }
  return detail::make_hierarchical_engine(context, rendezvous, hosts, make_between,
                                          mpi ? "shm+mpi" : "shm+gloo");
}

std::shared_ptr<GroupEngine> make_engine(const EngineContext& context,
                                         GroupRendezvous& rendezvous) {
  switch (context.options.kind) {
    case EngineKind::kShm:
      return detail::make_shm_engine(context, rendezvous);
    case EngineKind::kMpi:
      return detail::make_mpi_engine(context, rendezvous);
    case EngineKind::kNccl:
      return detail::make_nccl_engine(context, rendezvous);
    case EngineKind::kGloo:
      return detail::make_gloo_engine(context, rendezvous);
    default:
      return make_fastest_engine(context, rendezvous);
  }
}

// A connection to each peer at least; two and what it takes to make them at most.
void reserve_connections(const std::string& axis, std::size_t peers) {
  constexpr std::uint64_t kOthers = 4, kMostOthers = 32, kMostOfEach = 3;
  reserve_open_files(peers + kOthers, kMostOfEach * peers + kMostOthers,
                     "a rank with " + std::to_string(peers) + (peers == 1 ? " peer" : " peers") +
                         " on axis " + axis);
}

}  // namespace

Group make_group(std::string axis, std::vector<int> ranks, int index,
                 const EngineOptions& options) {
  (void)resolve_engine(options.kind);
  std::shared_ptr<GroupEngine> engine;
  std::uint32_t identity = 0;
  if (ranks.size() > 1 && options.kind == EngineKind::kFake) {
    engine = detail::make_fake_engine({axis, ranks, index, options});
  } else if (ranks.size() > 1) {
    reserve_connections(axis, ranks.size() - 1);
    const EngineContext context{axis, ranks, index, options};
    GroupRendezvous rendezvous(context);
    engine = make_engine(context, rendezvous);
    identity = rendezvous.identity();
  }
  return Group(std::move(axis), std::move(ranks), index, options.generation, std::move(engine),
               identity, options.observers);
}

}  // namespace troika
