// An engine as a value: its name, what it can do, and how it is made. Each engine's folder defines
// one, and all stand in one list (kinds.cc); a recipe's `auto` picks among them. An engine has no
// keys of its own yet.
#pragma once

#include <troika/comm/engines.h>
#include <troika/comm/group.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

namespace detail {
class GroupRendezvous;
}

// The arguments with which an engine makes a group of two or more.
struct EngineContext {
  const std::string& axis;
  const std::vector<int>& ranks;
  int index;
  const EngineOptions& options;
  at::Device device = at::kCPU;  // whose tensors it is to carry
};

// The availability of an engine on this machine. `reason` says why it cannot be used and what to
// do, or what the engine is for.
struct EngineAvailability {
  bool built;
  bool usable;
  std::string reason;
  std::string version = {};  // of its library, where all members must have the same
};

struct EngineKind {
  std::string_view name;
  EngineTraits traits;
  EngineAvailability (*availability)();
  // Collective. Returns whether the engine works on all members. May start what it needs. Null: the
  // engine works wherever it is usable.
  bool (*works_on_all)(detail::GroupRendezvous& rendezvous) = nullptr;
  // Collective. Makes the engine of a group. `rendezvous` is null for an engine that exchanges
  // nothing.
  std::shared_ptr<GroupEngine> (*make)(const EngineContext& context,
                                       detail::GroupRendezvous* rendezvous);

  // Returns all engines, in the order in which users read them.
  [[nodiscard]] static std::span<const EngineKind* const> all();
};

}  // namespace troika
