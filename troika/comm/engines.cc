#include <troika/base/error.h>
#include <troika/base/open_file_limit.h>
#include <troika/base/text.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/engine_kind.h>
#include <troika/comm/engines.h>
#include <troika/comm/hierarchical/factory.h>
#include <troika/comm/hierarchical/hosts.h>
#include <troika/device/device.h>
#include <troika/rendezvous/endpoint.h>

#include <algorithm>
#include <set>

namespace troika {
namespace {

using detail::GroupRendezvous;
using Reach = EngineTraits::Reach;

const EngineKind& kind_called(std::string_view name) {
  for (const EngineKind* kind : EngineKind::all()) {
    if (kind->name == name) return *kind;
  }
  throw UsageError("no engine is called " + quote(name), "engines: " + join(engine_words(), ", "));
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

// Makes the engine for tensors of a device when they come: the one that is asked for by name, else
// the preferred one that every member can use, on a device of its own each.
class DeviceEngines {
 public:
  explicit DeviceEngines(const EngineContext& context)
      : axis_(context.axis + " on device"),
        ranks_(context.ranks),
        index_(context.index),
        options_(context.options) {}

  std::shared_ptr<GroupEngine> operator()(at::Device device) const {
    const EngineContext context{axis_, ranks_, index_, options_, device};
    GroupRendezvous rendezvous(context);
    for (const EngineKind* kind : EngineKind::all()) {
      if (kind->traits.memory != device.type() || !is_wanted(*kind)) continue;
      if (works_on_all(*kind, device, rendezvous)) return kind->make(context, &rendezvous);
    }
    return nullptr;
  }

 private:
  [[nodiscard]] bool is_wanted(const EngineKind& kind) const {
    return options_.engine == kAutoEngine || options_.engine == kind.name;
  }

  // Collective.
  [[nodiscard]] bool works_on_all(const EngineKind& kind, at::Device device,
                                  GroupRendezvous& rendezvous) const {
    const EngineAvailability own = kind.availability();
    const std::string host = host_identity();
    const std::string answer = own.usable ? host + " " + name_of(device) : std::string();
    const std::vector<std::string> all =
        rendezvous.exchange("device of " + std::string(kind.name), answer);
    const std::set<std::string> apart(all.begin(), all.end());
    const bool works = !apart.contains("") && apart.size() == all.size();
    if (works || options_.engine == kAutoEngine) return works;
    if (!own.usable) throw UsageError("engine " + std::string(kind.name) + ": " + own.reason);
    throw UsageError("engine " + std::string(kind.name) + " on axis " + axis_ +
                         (apart.contains("") ? ": another rank cannot use it"
                                             : ": two ranks compute on one device"),
                     "engine \"auto\" goes through the host's memory then");
  }

  std::string axis_;
  std::vector<int> ranks_;
  int index_;
  EngineOptions options_;
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
                     "use the engine gloo (comm.engine, SessionOptions::engine)");
  }
  return kind.name;
}

Group make_group(std::string axis, std::vector<int> ranks, int index,
                 const EngineOptions& options) {
  (void)resolve_engine(options.engine);
  std::shared_ptr<GroupEngine> engine;
  std::uint32_t identity = 0;
  MakeDeviceEngine make_device_engine;
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
  }
  return Group(std::move(axis), std::move(ranks), index, options.generation, std::move(engine),
               identity, options.observers, std::move(make_device_engine));
}

}  // namespace troika
