// The section [sync] of a recipe: how the replicas of a model stay together.
#pragma once

#include <troika/config/component.h>
#include <troika/sync/all_reduce_sync.h>
#include <troika/sync/outer_step.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace troika {

// The ranks around this one. An island is the ranks that act as one in a step: they divide, clip
// and skip together. There is one island where replicas stay equal.
struct SyncGroups {
  Group world;                 // all ranks
  Group island;                // those of this rank's island
  Group islands;               // those with this rank's place in their islands
  PartialGroups partial = {};  // of the island
  Seconds timeout = Seconds(60);
  double patience = 1;                        // AllReduceOptions
  std::shared_ptr<BucketHook> compress = {};  // what is exchanged; may be null
};

// Describes how parameters lie in processes of their own (troika/server), from which ranks pull
// them, and to which they push gradients.
struct ServerSettings {
  int servers = 1;                            // a part of the parameters on each
  std::optional<std::int64_t> staleness = 0;  // steps that a rank may be ahead; nullopt: any
  bool divides_by_staleness = false;          // the rate of an update
  // Steps that a rank takes with the recipe's optimiser on its samples of a step. It then pushes
  // what they have changed, and servers take the outer step. 0: ranks push gradients.
  std::int64_t local_steps = 0;
  OuterStep outer = {};
  std::int64_t island = 1;              // ranks that are one worker
  Seconds lease{60};                    // of a rank that is silent
  std::int64_t save_every_updates = 0;  // a server, itself; 0: never
  std::string listen = {};              // "HOST:PORT" of the coordinator; empty: any port
  bool own_data = false;                // each rank has files of its own
};

// A kind that [sync] can name. A new one is a file that defines it, and a line in kind.cc.
class SyncKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const SyncKind* const> all();
  [[nodiscard]] static const SyncKind& default_kind();

  // Returns the ranks of an island, or 0 where all ranks are one. `host_ranks` are those of a host.
  [[nodiscard]] virtual std::int64_t island(const Options& options,
                                            std::int64_t host_ranks) const = 0;
  // Returns how parameters lie on servers; nullopt: they do not, ranks meet each other.
  [[nodiscard]] virtual std::optional<ServerSettings> servers(const Options&) const {
    return std::nullopt;
  }
  // Returns the options by which all ranks are one island, as those of a worker are.
  [[nodiscard]] virtual Options within_island(const Options& options) const { return options; }
  // Returns the copies of a rank's masters that it keeps.
  [[nodiscard]] virtual std::int64_t copies(const Options&) const { return 0; }
  // Describes what compression would be applied to.
  enum class Compresses { kGradients, kChanges, kPushes, kNothing };
  [[nodiscard]] virtual Compresses compresses() const = 0;
  // Makes it. The arena must outlive it.
  [[nodiscard]] virtual std::unique_ptr<ReplicaSync> make(const Options& options, Arena& arena,
                                                          const SyncGroups& groups) const = 0;
};

[[nodiscard]] const SyncKind& all_reduce_kind();
[[nodiscard]] const SyncKind& local_kind();
[[nodiscard]] const SyncKind& gossip_kind();
[[nodiscard]] const SyncKind& server_kind();

}  // namespace troika
