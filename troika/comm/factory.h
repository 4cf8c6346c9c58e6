// The functions by which make_group() reaches the engines, one a folder. An engine that is not
// built is a stub that refuses by name.
#pragma once

#include <troika/comm/engines.h>
#include <troika/comm/group.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

class GroupRendezvous;

// For a group of two or more.
struct EngineContext {
  const std::string& axis;
  const std::vector<int>& ranks;
  int index;
  const EngineOptions& options;
};

[[nodiscard]] std::shared_ptr<GroupEngine> make_gloo_engine(const EngineContext& context,
                                                            GroupRendezvous& rendezvous);
[[nodiscard]] std::shared_ptr<GroupEngine> make_fake_engine(const EngineContext& context);
[[nodiscard]] std::shared_ptr<GroupEngine> make_shm_engine(const EngineContext& context,
                                                           GroupRendezvous& rendezvous);
[[nodiscard]] std::shared_ptr<GroupEngine> make_mpi_engine(const EngineContext& context,
                                                           GroupRendezvous& rendezvous);
// Collective: whether MPI works on all members. Starts it.
[[nodiscard]] bool can_use_mpi(GroupRendezvous& rendezvous);
[[nodiscard]] std::shared_ptr<GroupEngine> make_nccl_engine(const EngineContext& context,
                                                            GroupRendezvous& rendezvous);

// Shared memory inside hosts, and what `make_between` makes between them. `hosts`, by member: equal
// for those who share one, of which there are several. `name` is a literal.
using MakeEngine = std::shared_ptr<GroupEngine> (*)(const EngineContext&, GroupRendezvous&);
[[nodiscard]] std::shared_ptr<GroupEngine> make_hierarchical_engine(const EngineContext& context,
                                                                    GroupRendezvous& rendezvous,
                                                                    std::span<const int> hosts,
                                                                    MakeEngine make_between,
                                                                    std::string_view name);

[[nodiscard]] EngineFacts gloo_facts();
[[nodiscard]] EngineFacts fake_facts();
[[nodiscard]] EngineFacts shm_facts();
[[nodiscard]] EngineFacts mpi_facts();
[[nodiscard]] EngineFacts nccl_facts();

}  // namespace troika::detail
