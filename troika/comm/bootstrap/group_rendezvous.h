// Lets the members of a group exchange data through the store before they are connected. Each
// writes under keys that name axis, members, generation and how many such groups there were.
#pragma once

#include <troika/comm/engine_kind.h>
#include <troika/comm/members.h>
#include <troika/rendezvous/store.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

class GroupRendezvous {
 public:
  // Collective, in the same order on all members. Opens a connection of its own.
  explicit GroupRendezvous(const EngineContext& context);
  // Makes a rendezvous of some members of `whole`, over its connection. A member that takes part in
  // several gives each a different `topic`.
  GroupRendezvous(const EngineContext& context, const GroupRendezvous& whole,
                  std::string_view topic);

  // Collective. Returns each member's text on `topic`, by member. Throws RendezvousError naming the
  // ranks that do not come by the deadline.
  [[nodiscard]] std::vector<std::string> exchange(std::string_view topic, const std::string& own);
  // Collective. Returns the members with their hosts.
  [[nodiscard]] Members members();

  [[nodiscard]] Store& store() { return store_; }
  // Returns the group's identity, for OperationFacts::group.
  [[nodiscard]] std::uint32_t identity() const { return identity_; }
  [[nodiscard]] const Deadline& deadline() const { return deadline_; }

 private:
  const EngineContext& context_;
  Deadline deadline_;
  std::uint32_t identity_ = 0;
  Store store_;
};

}  // namespace troika::detail
