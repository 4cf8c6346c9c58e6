// Makes the engine across hosts of two others: `inside` within hosts, and `between` across them.
#pragma once

#include <troika/comm/engine_kind.h>

#include <memory>
#include <span>

namespace troika::detail {

// Collective. `hosts`, by member: equal for those who share one, of which there are several.
[[nodiscard]] std::shared_ptr<GroupEngine> make_hierarchical_engine(const EngineContext& context,
                                                                    GroupRendezvous& rendezvous,
                                                                    std::span<const int> hosts,
                                                                    const EngineKind& inside,
                                                                    const EngineKind& between);

}  // namespace troika::detail
