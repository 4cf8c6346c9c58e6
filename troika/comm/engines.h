// Makes groups: picks the engine, and connects its members through the store. engine_kind.h has
// what an engine is.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/comm/options.h>
#include <troika/rendezvous/store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct EngineOptions {
  std::string engine{kAutoEngine};
  // The store over which the members meet. It must outlive the call alone. May be null for a group
  // of one and for the engine `fake`.
  const Store* store = nullptr;
  // The address at which the others can reach this process. Empty: that of the interface which
  // leads to the store. TROIKA_INTERFACE and GLOO_SOCKET_IFNAME take precedence.
  std::string address = {};
  // The order of reductions. kInOrder is the order of members: a repeated run gives the same bits,
  // and the same ones on one host as on several. Engines that have nothing faster always use it.
  enum class ReductionOrder { kFastest, kInOrder } reduction_order = ReductionOrder::kFastest;
  // The host of each rank of the world, as a number that is equal for ranks that share one. Empty:
  // `auto` finds out by trying. For tests, which pretend that one host is several.
  std::function<int(int rank)> host_of = {};
  // The number of ranks of the job on this host, in all groups. They share its cores, which decides
  // how a rank waits. 0: the group's ranks are the only ones.
  int ranks_on_host = 0;
  // The number of rebuilds of the job.
  std::uint64_t generation = 0;
  // The time for the members to come and to connect.
  Seconds rendezvous_timeout = Seconds(300);
  GroupObservers observers = {};
  // The folder of the flight recorders of this host's ranks, if there are any. They show what a
  // missing rank did last. This rank's is `observers.recorder`, which must lie there, too.
  std::filesystem::path recorders = {};
};

// The abilities of an engine.
struct EngineTraits {
  // The ranks between which it exchanges values. kNowhere: one process stands for all.
  enum class Reach { kNowhere, kOneHost, kAnyHosts };
  Reach reach = Reach::kAnyHosts;
  // The kind of device whose tensors it takes.
  at::DeviceType memory = at::kCPU;
  // Reduces in the order of members, whatever the options say.
  bool reduces_in_order = true;
  // The priority for `auto`: among engines that could do the same, it takes the highest.
  int preference = 0;

  [[nodiscard]] bool exchanges() const { return reach != Reach::kNowhere; }
  [[nodiscard]] bool carries_host_memory() const { return memory == at::kCPU; }
};

// An engine that a user may choose.
struct EngineFacts {
  std::string name;
  bool built;
  bool usable;         // on this machine
  std::string reason;  // why not, and what to do; or what it is for
  EngineTraits traits = {};
};

// Returns all engines. Looks for the plug-ins that they need.
[[nodiscard]] std::vector<EngineFacts> list_engines();

// Returns the traits of an engine; those of kAutoEngine are the defaults. Throws UsageError for an
// unknown name, with the names that exist.
[[nodiscard]] EngineTraits traits_of_engine(std::string_view name);

// Returns the name of the engine that `name` stands for: kAutoEngine is the fastest one that can be
// used. Throws UsageError naming an engine that cannot be used, or that does not exist.
[[nodiscard]] std::string_view resolve_engine(std::string_view name);

// Makes a group. Collective among `ranks` (world ranks in ascending order; this process is the one
// at `index`), which make their groups in the same order. The first group over MPI must have all
// ranks of the job, as a Session's has: MPI is started with it. Throws RendezvousError naming the
// ranks that do not come within the time-out, UsageError naming an engine that is not built.
[[nodiscard]] Group make_group(std::string axis, std::vector<int> ranks, int index,
                               const EngineOptions& options);

}  // namespace troika
