// Makes the engine across hosts of two others: `inside` within hosts, and `between` across them.
#pragma once

#include <troika/comm/engine_kind.h>

#include <memory>
#include <span>

namespace troika::detail {

// Makes the engine. Collective. `hosts` has a number for each member, equal for those that share a
// host. There must be several hosts.
[[nodiscard]] std::shared_ptr<GroupEngine> make_hierarchical_engine(const EngineContext& context,
                                                                    GroupRendezvous& rendezvous,
                                                                    std::span<const int> hosts,
                                                                    const EngineKind& inside,
                                                                    const EngineKind& between);

}  // namespace troika::detail
