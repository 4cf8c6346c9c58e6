// Parameters on servers (Smola and Narayanamurthy 2010; Dean et al. 2012; Li et al. 2014): what a
// recipe says of them. The processes are in troika/server.
#include <troika/base/error.h>
#include <troika/sync/kind.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace troika {

enum class StalenessCorrection { kNone, kInverse };

struct ServerOptions {
  std::int64_t servers = 1;
  std::optional<std::int64_t> staleness = 0;  // the largest number there is: any
  StalenessCorrection correction = StalenessCorrection::kNone;
  std::int64_t local_steps = 0;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  std::int64_t island = 1;  // 0: all ranks
  double lease_seconds = 60;
  std::int64_t save_every_updates = 1000;
  std::string listen = "none";
  bool own_data = false;

  bool operator==(const ServerOptions&) const = default;
};

template <>
std::span<const std::string_view> names_of<StalenessCorrection>() {
  static constexpr std::array<std::string_view, 2> kNames = {"none", "inverse"};
  return kNames;
}

namespace {

std::optional<std::int64_t> bound_of(const ServerOptions& options) {
  const std::int64_t bound = options.staleness.value_or(0);
  if (bound == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return bound;
}

class ServerKind final : public Declared<SyncKind, ServerOptions> {
 public:
  using K = KeysOf<ServerOptions>;
  ServerKind()
      : Declared(
            "server",
            {K::integer<&ServerOptions::servers>("servers", IntegerRange{1, 1024},
                                                 "processes that keep the parameters, a part each"),
             K::auto_integer<&ServerOptions::staleness>(
                 "staleness", ranges::kAny,
                 "steps that a worker may be ahead of another; 0: all gradients of a step make one "
                 "update; \"any\": no worker waits",
                 "any"),
             K::choice<&ServerOptions::correction>(
                 "correction",
                 "what the rate of a stale update is divided by: nothing, or its staleness"),
             K::integer<&ServerOptions::local_steps>(
                 "local_steps", ranges::kCountOrOff,
                 "steps that a worker takes on its samples of a step, before it pushes what they "
                 "have changed (DiLoCo); 0: it pushes gradients"),
             K::number<&ServerOptions::outer_lr>("outer_lr", ranges::kAboveZero,
                                                 "learning rate of the servers' step, where "
                                                 "workers take local_steps"),
             K::number<&ServerOptions::outer_momentum>("outer_momentum", ranges::kBelowOne,
                                                       "Nesterov's momentum of that step"),
             K::integer<&ServerOptions::island>("island", ranges::kPositive,
                                                "ranks of a worker, which [parallel] lays out"),
             K::seconds<&ServerOptions::lease_seconds>(
                 "lease_seconds", "the job goes on without a worker that is silent for longer"),
             K::integer<&ServerOptions::save_every_updates>(
                 "save_every_updates", ranges::kCountOrOff,
                 "a server saves its part after so many updates, and goes on from there should it "
                 "die; 0: it does not"),
             K::text<&ServerOptions::listen>("listen",
                                             "HOST:PORT of the coordinator, at which other workers "
                                             "may join; none: a free port "
                                             "of this host"),
             K::boolean<&ServerOptions::own_data>(
                 "own_data",
                 "workers have data of their own, on purpose: their files, behind the "
                 "same paths, are not compared with the job's")}) {}

  void check(const Options& options, const Origins& origins) const override {
    const auto& own = options.as<ServerOptions>();
    if (own.correction == StalenessCorrection::kNone || bound_of(own) != 0) return;
    origins.fail({"sync.correction", "sync.staleness"},
                 "correction = \"inverse\" with staleness = 0, where no update is stale",
                 "write staleness = \"any\", or a bound");
  }
  // A worker is an island.
  [[nodiscard]] std::int64_t island(const Options& options, std::int64_t) const override {
    return options.as<ServerOptions>().island;
  }
  [[nodiscard]] Options within_island(const Options& options) const override {
    Options within = options;
    within.as<ServerOptions>().island = 0;
    return within;
  }
  [[nodiscard]] std::int64_t copies(const Options&) const override { return 1; }
  [[nodiscard]] Compresses compresses() const override { return Compresses::kPushes; }
  [[nodiscard]] std::optional<ServerSettings> servers(const Options& options) const override {
    const auto& own = options.as<ServerOptions>();
    ServerSettings settings;
    settings.servers = static_cast<int>(own.servers);
    settings.staleness = bound_of(own);
    settings.divides_by_staleness = own.correction == StalenessCorrection::kInverse;
    settings.local_steps = own.local_steps;
    settings.outer = {own.outer_lr, own.outer_momentum};
    settings.island = own.island;
    settings.lease = Seconds(own.lease_seconds);
    settings.save_every_updates = own.save_every_updates;
    if (own.listen != "none") settings.listen = own.listen;
    settings.own_data = own.own_data;
    return settings;
  }
  [[nodiscard]] std::unique_ptr<ReplicaSync> make(const Options&, Arena&,
                                                  const SyncGroups&) const override {
    throw InternalError("internal error: servers are reached by connections, not by groups");
  }
};

}  // namespace

const SyncKind& server_kind() {
  static const ServerKind kKind;
  return kKind;
}

}  // namespace troika
