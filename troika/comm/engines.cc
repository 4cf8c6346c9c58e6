#include <troika/base/error.h>
#include <troika/base/open_file_limit.h>
#include <troika/base/text.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/engine_kind.h>
#include <troika/comm/engines.h>
#include <troika/comm/hierarchical/factory.h>
#include <troika/comm/hierarchical/hosts.h>
#include <troika/device/device.h>
#include <troika/device/facts.h>
#include <troika/rendezvous/endpoint.h>

#include <algorithm>
#include <set>

namespace troika {
namespace {

using detail::GroupRendezvous;

constexpr const char* kUseAuto =
    "write comm.engine = \"auto\" (SessionOptions::engine), which takes one that works";
constexpr const char* kUseAutoOnDevices =
    "comm.engine = \"auto\" (SessionOptions::engine) goes through the host's memory then";

using Reach = EngineTraits::Reach;

const EngineKind& kind_called(std::string_view name) {
  for (const EngineKind* kind : EngineKind::all()) {
    if (kind->name == name) return *kind;
  }
  throw UsageError("no engine is called " + quote(name), "engines: " + join(engine_names(), ", "));
}

// Those that carry the host's memory so far, the preferred first.
std::vector<const EngineKind*> kinds_that_reach(Reach reach) {
  std::vector<const EngineKind*> kinds;
  for (const EngineKind* kind : EngineKind::all()) {
    if (kind->traits.reach == reach && kind->traits.carries_host_memory()) kinds.push_back(kind);
  }
  std::ranges::stable_sort(kinds, [](const auto* a, const auto* b) {
    return a->traits.preference > b->traits.preference;
  });
  return kinds;
}

// Collective: the preferred one that works on all members.
const EngineKind& kind_between_hosts(const EngineContext& context, GroupRendezvous& rendezvous) {
  const bool in_order = context.options.reduction_order == EngineOptions::ReductionOrder::kInOrder;
  for (const EngineKind* kind : kinds_that_reach(Reach::kAnyHosts)) {
    if (in_order && !kind->traits.reduces_in_order) continue;
    if (!kind->works_on_all || kind->works_on_all(rendezvous)) return *kind;
  }
  throw InternalError("internal error: no engine works between hosts");
}

// Collective: a number for each member, equal for those that share a host.
std::vector<int> hosts_of(const EngineContext& context, GroupRendezvous& rendezvous) {
  if (!context.options.host_of) return detail::find_hosts(rendezvous, context.index);
  std::vector<int> hosts;
  for (const int rank : context.ranks) hosts.push_back(context.options.host_of(rank));
  return hosts;
}

// What `auto` takes: shared memory where all members share a host; else what speaks between hosts,
// with shared memory inside them where some share one. That reduces host by host, so not if the
// order of members is asked for.
std::shared_ptr<GroupEngine> make_fastest_engine(const EngineContext& context,
                                                 GroupRendezvous& rendezvous) {
  const EngineOptions& options = context.options;
  const std::vector<int> hosts = hosts_of(context, rendezvous);
  const auto different = std::set<int>(hosts.begin(), hosts.end()).size();
  const EngineKind& inside = *kinds_that_reach(Reach::kOneHost).front();
  if (different == 1) return inside.make(context, &rendezvous);
  const EngineKind& between = kind_between_hosts(context, rendezvous);
  if (different == hosts.size() ||
      options.reduction_order == EngineOptions::ReductionOrder::kInOrder) {
    return between.make(context, &rendezvous);
  }
  return detail::make_hierarchical_engine(context, rendezvous, hosts, inside, between);
}

// A connection to each peer at least; two and what it takes to make them at most.
void reserve_connections(const std::string& axis, std::size_t peers) {
  constexpr std::uint64_t kOthers = 4, kMostOthers = 32, kMostOfEach = 3;
  reserve_open_files(peers + kOthers, kMostOfEach * peers + kMostOthers,
                     "a rank with " + std::to_string(peers) + (peers == 1 ? " peer" : " peers") +
                         " on axis " + axis);
}

// What makes more of a group later: it keeps all that the group was made of.
struct GroupParts {
  explicit GroupParts(const EngineContext& context)
      : axis(context.axis),
        ranks(context.ranks),
        index(context.index),
        store(std::make_shared<Store>(context.options.store->share())),
        options(context.options) {
    options.store = store.get();
  }

  std::string axis;
  std::vector<int> ranks;
  int index;
  std::shared_ptr<Store> store;  // a group may outlive its session's
  EngineOptions options;
};

// Makes the groups of Group::by_host().
class HostGroupMaker {
 public:
  explicit HostGroupMaker(const EngineContext& context) : parts_(context) {}

  HostGroups operator()() const {
    const std::string axis = parts_.axis + " by host";
    const EngineContext context{axis, parts_.ranks, parts_.index, parts_.options};
    GroupRendezvous rendezvous(context);
    const detail::Hosts hosts(hosts_of(context, rendezvous));
    HostGroups groups;
    groups.hosts = hosts.count();
    if (groups.hosts == 1) return groups;
    groups.common_local_ranks = hosts.leaders();
    groups.local_rank = hosts.local_index_of(parts_.index);
    groups.inside = group_of(parts_.axis + " in host", hosts.members(hosts.host_of(parts_.index)));
    if (groups.local_rank >= groups.common_local_ranks) return groups;
    std::vector<int> same_local_rank;
    for (int host = 0; host < groups.hosts; ++host) {
      same_local_rank.push_back(hosts.members(host)[static_cast<std::size_t>(groups.local_rank)]);
    }
    std::ranges::sort(same_local_rank);
    groups.between = group_of(parts_.axis + " between hosts", same_local_rank);
    return groups;
  }

 private:
  [[nodiscard]] Group group_of(std::string axis, const std::vector<int>& members) const {
    std::vector<int> ranks;
    for (const int member : members) {
      ranks.push_back(parts_.ranks[static_cast<std::size_t>(member)]);
    }
    const auto own = std::ranges::find(members, parts_.index) - members.begin();
    return make_group(std::move(axis), std::move(ranks), static_cast<int>(own), parts_.options);
  }

  GroupParts parts_;
};

// Makes the engine for tensors of a device when they come: the one that is asked for by name, else
// the preferred one that every member can use, on a device of its own each.
class DeviceEngines {
 public:
  explicit DeviceEngines(const EngineContext& context)
      : parts_(context), axis_(context.axis + " on device") {}

  std::shared_ptr<GroupEngine> operator()(at::Device device) const {
    const EngineContext context{axis_, parts_.ranks, parts_.index, parts_.options, device};
    GroupRendezvous rendezvous(context);
    for (const EngineKind* kind : EngineKind::all()) {
      if (kind->traits.memory != device.type() || !is_wanted(*kind)) continue;
      if (works_on_all(*kind, device, rendezvous)) return kind->make(context, &rendezvous);
    }
    return nullptr;
  }

 private:
  [[nodiscard]] bool is_wanted(const EngineKind& kind) const {
    const bool in_order = parts_.options.reduction_order == EngineOptions::ReductionOrder::kInOrder;
    if (parts_.options.engine == kAutoEngine) return !in_order || kind.traits.reduces_in_order;
    if (parts_.options.engine != kind.name) return false;
    if (!in_order || kind.traits.reduces_in_order) return true;
    throw UsageError("engine " + std::string(kind.name) + " on axis " + axis_ +
                         ": it adds in an order of its own, and this run needs that of its members",
                     kUseAutoOnDevices);
  }

  // Equal on two ranks that use one device, whatever each calls it.
  [[nodiscard]] static std::string identity_of(at::Device device) {
    const std::string bus = fixed_facts_of(device).pci_bus_id;
    return host_identity() + " " + (bus.empty() ? name_of(device) : bus);
  }

  // Collective.
  [[nodiscard]] bool works_on_all(const EngineKind& kind, at::Device device,
                                  GroupRendezvous& rendezvous) const {
    const EngineAvailability own = kind.availability();
    const std::string step = std::string(kind.name) + ": ";
    const std::vector<std::string> versions =
        rendezvous.exchange(step + "version", own.usable ? own.version : "none");
    const std::vector<std::string> devices =
        rendezvous.exchange(step + "device", own.usable ? identity_of(device) : "");
    const std::set<std::string> apart(devices.begin(), devices.end());
    std::string refusal;
    if (std::ranges::find(versions, "none") != versions.end()) {
      refusal = "another rank cannot use it";
    } else if (std::ranges::count(versions, versions.front()) != std::ssize(versions)) {
      refusal = "ranks have different versions of it: " +
                join(std::set<std::string>(versions.begin(), versions.end()), ", ");
    } else if (apart.size() != devices.size()) {
      refusal = "two ranks compute on one device";
    }
    if (refusal.empty() || parts_.options.engine == kAutoEngine) return refusal.empty();
    if (!own.usable) {
      throw UsageError("engine " + std::string(kind.name) + ": " + own.reason, kUseAutoOnDevices);
    }
    throw UsageError("engine " + std::string(kind.name) + " on axis " + axis_ + ": " + refusal,
                     kUseAutoOnDevices);
  }

  GroupParts parts_;
  std::string axis_;
};

}  // namespace

std::vector<EngineFacts> list_engines() {
  std::vector<EngineFacts> engines;
  for (const EngineKind* kind : EngineKind::all()) {
    EngineAvailability available = kind->availability();
    engines.push_back({std::string(kind->name), available.built, available.usable,
                       std::move(available.reason), kind->traits});
  }
  return engines;
}

EngineTraits traits_of_engine(std::string_view name) {
  return name == kAutoEngine ? EngineTraits() : kind_called(name).traits;
}

std::string_view resolve_engine(std::string_view name) {
  if (name == kAutoEngine) {
    for (const auto reach : {EngineTraits::Reach::kOneHost, EngineTraits::Reach::kAnyHosts}) {
      for (const EngineKind* kind : kinds_that_reach(reach)) {
        if (kind->availability().usable) return kind->name;
      }
    }
    throw InternalError("internal error: gloo is always usable");
  }
  const EngineKind& kind = kind_called(name);
  const EngineAvailability available = kind.availability();
  if (!available.usable) {
    throw UsageError("engine " + std::string(kind.name) +
                         (available.built ? " cannot be used: " : " is not built: ") +
                         available.reason,
                     kUseAuto);
  }
  return kind.name;
}

Group make_group(std::string axis, std::vector<int> ranks, int index,
                 const EngineOptions& options) {
  (void)resolve_engine(options.engine);
  std::shared_ptr<GroupEngine> engine;
  std::uint32_t identity = 0;
  MakeDeviceEngine make_device_engine;
  MakeHostGroups make_host_groups;
  const EngineContext context{axis, ranks, index, options};
  const EngineTraits traits = traits_of_engine(options.engine);
  if (ranks.size() > 1 && !traits.exchanges()) {
    engine = kind_called(options.engine).make(context, nullptr);
  } else if (ranks.size() > 1) {
    reserve_connections(axis, ranks.size() - 1);
    GroupRendezvous rendezvous(context);
    const bool automatic = options.engine == kAutoEngine || !traits.carries_host_memory();
    engine = automatic ? make_fastest_engine(context, rendezvous)
                       : kind_called(options.engine).make(context, &rendezvous);
    identity = rendezvous.identity();
    if (automatic) make_device_engine = DeviceEngines(context);
    make_host_groups = HostGroupMaker(context);
  }
  return Group(std::move(axis), std::move(ranks), index, options.generation, std::move(engine),
               identity, options.observers, std::move(make_device_engine),
               std::move(make_host_groups));
}

}  // namespace troika
