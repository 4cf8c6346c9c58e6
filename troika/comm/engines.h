// Makes groups: picks the engine, and connects its members through the store.
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
#include <vector>

namespace troika {

struct EngineOptions {
  EngineKind kind = EngineKind::kAuto;
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

// What a user may choose.
struct EngineFacts {
  EngineKind kind;
  std::string name;
  bool built;
  bool usable;         // on this machine
  std::string reason;  // why not, and what to do; or what it is for
  bool carries_host_memory = true;
};

[[nodiscard]] std::vector<EngineFacts> list_engines();

// The engine that `kind` stands for: `auto` is the fastest one that can be used. Throws UsageError
// naming an engine that is not built.
[[nodiscard]] EngineKind resolve_engine(EngineKind kind);

// Collective among `ranks` (world ranks in ascending order; this process is the one at `index`),
// who make their groups in the same order. The first group over MPI is of all ranks of the job, as
// a Session's is: MPI is started with it. Throws RendezvousError naming the ranks that do not come
// within the time-out, UsageError naming an engine that is not built.
[[nodiscard]] Group make_group(std::string axis, std::vector<int> ranks, int index,
                               const EngineOptions& options);

}  // namespace troika
