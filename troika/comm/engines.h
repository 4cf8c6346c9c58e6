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
  // Where the members meet; only used while the group is made. May be null where none is needed:
  // for a group of one, and for the engine `fake`.
  const Store* store = nullptr;
  // At which the others can reach this process. Empty: that of the interface which leads to the
  // store. TROIKA_INTERFACE and GLOO_SOCKET_IFNAME take precedence.
  std::string address = {};
  // Reduce in the order of members, so that a run repeated gives the same bits, and the same ones
  // on one host as on several. Engines that have nothing faster always do.
  enum class ReductionOrder { kFastest, kInOrder } reduction_order = ReductionOrder::kFastest;
  // Which ranks of the world share a host: a number for each, equal for those who do. Empty: `auto`
  // finds out by trying. For tests, which pretend that one host is several.
  std::function<int(int rank)> host_of = {};
  // Ranks of the job on this host, in whatever groups: they share its cores, which decides how a
  // rank waits. 0: those of the group are all there are.
  int ranks_on_host = 0;
  // Counts the rebuilds of the job.
  std::uint64_t generation = 0;
  // For the members to come and to connect.
  Seconds rendezvous_timeout = Seconds(300);
  GroupObservers observers = {};
  // Where the flight recorders of the ranks of this host lie, if there are any: tells what a rank
  // that is missing did last. This rank's is `observers.recorder`, which must lie there, too.
  std::filesystem::path recorders = {};
};

// What an engine can do.
struct EngineTraits {
  // Between which ranks it exchanges values; kNowhere: one process stands for all.
  enum class Reach { kNowhere, kOneHost, kAnyHosts };
  Reach reach = Reach::kAnyHosts;
  // Takes tensors of the host, else those of a GPU.
  bool carries_host_memory = true;
  // Always reduces in the order of members.
  bool reduces_in_order = true;
  // Of those that could do the same, `auto` takes the one with the highest.
  int preference = 0;

  [[nodiscard]] bool exchanges() const { return reach != Reach::kNowhere; }
};

// What a user may choose.
struct EngineFacts {
  std::string name;
  bool built;
  bool usable;         // on this machine
  std::string reason;  // why not, and what to do; or what it is for
  EngineTraits traits = {};
};

// All engines. Looks for the plug-ins that they need.
[[nodiscard]] std::vector<EngineFacts> list_engines();

// Returns the traits of an engine; those of kAutoEngine are the defaults. Throws UsageError for a
// name that is none, with those that are.
[[nodiscard]] EngineTraits traits_of_engine(std::string_view name);

// Returns the name of the engine that `name` stands for: kAutoEngine is the fastest one that can be
// used. Throws UsageError naming an engine that cannot be used, or that does not exist.
[[nodiscard]] std::string_view resolve_engine(std::string_view name);

// Collective among `ranks` (world ranks in ascending order; this process is the one at `index`),
// who make their groups in the same order. The first group over MPI is of all ranks of the job, as
// a Session's is: MPI is started with it. Throws RendezvousError naming the ranks that do not come
// within the time-out, UsageError naming an engine that is not built.
[[nodiscard]] Group make_group(std::string axis, std::vector<int> ranks, int index,
                               const EngineOptions& options);

}  // namespace troika
