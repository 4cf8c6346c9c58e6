#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/flat_layout.h>
#include <troika/server/messages.h>
#include <troika/server/observer_sync.h>
#include <troika/server/server_shard.h>

#include <span>
#include <utility>
#include <vector>

namespace troika {

using messages::Json;

namespace {

// Of the steps after the saved one: their parts that are done, the parts of a step, and figures as
// "sync.figures.7.loss", with updates by their staleness as "sync.figures.7.staleness.3".
constexpr const char* kParts = "sync.parts";
constexpr const char* kPartsOfStep = "sync.parts_of_step";
// How much of a round of pushes the servers' momentum waits for has come.
constexpr const char* kRound = "sync.round";
constexpr std::string_view kFigures = "sync.figures.";
constexpr std::string_view kStaleness = "staleness.";

// The state of one kind, as the masters lie.
template <class Visit>
void for_each_state_of(const FlatMasters& masters, const Arena& arena,
                       std::span<const NamedState> state, std::int64_t kinds, const Visit& visit) {
  masters.for_each_shard([&](const LocalShard& shard, std::int64_t begin) {
    const auto index = static_cast<std::size_t>(&shard - arena.trained_shards().data());
    for (std::int64_t k = 0; k < kinds; ++k) {
      const std::size_t place =
          index * static_cast<std::size_t>(kinds) + static_cast<std::size_t>(k);
      visit(state[place].tensor.view({-1}), k, begin, shard.count);
    }
  });
}

}  // namespace

ObserverSync::ObserverSync(Arena& arena, ObserverOptions options)
    : RemoteSync(arena),
      options_(std::move(options)),
      servers_(options_.job.shards, options_.server, options_.job.connections) {}

ObserverSync::~ObserverSync() {
  servers_.cancel();
}

std::int64_t ObserverSync::states(std::span<const NamedState> state) const {
  const auto shards = std::ssize(arena().trained_shards());
  return shards == 0 ? 0 : std::ssize(state) / shards;
}

void ObserverSync::open(const RemoteStart& start) {
  const std::int64_t kinds = states(start.state);
  const std::int64_t size = masters().size();
  // By kind, each as the masters lie.
  const at::Tensor all = host_values((1 + kinds) * size);
  masters().read({0, size}, all.narrow(0, 0, size));
  for_each_state_of(
      masters(), arena(), start.state, kinds,
      [&](const at::Tensor& values, std::int64_t kind, std::int64_t begin, std::int64_t count) {
        all.narrow(0, (1 + kind) * size + begin, count).copy_(values);
      });
  std::vector<RpcMessage> requests;
  for (int shard = 0; shard < servers_.size(); ++shard) {
    const IndexRange range = shard_range(masters().size(), shard, servers_.size());
    Json header = {{"run", options_.coordinator.run},
                   {"type", arena().types().master == at::kDouble ? "float64" : "float32"},
                   {"version", start.updates},
                   {"step", start.step},
                   {"round", round_},
                   {"pieces", Json::array()}};
    for (const ShardSegment& segment : shard_segments(arena(), range, options_.treats_alike)) {
      header["pieces"].push_back(messages::json_of(segment));
    }
    RpcMessage request{header.dump(), {}, {}};
    for (std::int64_t kind = 0; kind <= kinds; ++kind) {
      request.body.push_back(shard_bytes(all.narrow(0, kind * size, size), shard, servers_.size()));
    }
    requests.push_back(std::move(request));
  }
  // The servers get their parameters before there is a coordinator: a worker that joins may pull at
  // once.
  static_cast<void>(
      servers_.call_all("init", requests, Deadline::in(options_.coordinator.start_timeout)));
  // Both before the service: answer() reads them without a lock once it is there.
  layout_ = std::make_shared<const std::string>(FlatLayout::of(arena()).text());
  frozen_ = std::make_shared<const at::Tensor>(frozen_values(arena()));
  CoordinatorServiceOptions options = options_.coordinator;
  options.coordinator.first_step = start.step + 1;
  options.coordinator.first_ordinal = start.samples;
  options.coordinator.parts_done = done_.parts;
  options.coordinator.figures = done_.figures;
  {
    const std::lock_guard lock(mutex_);
    service_ = std::make_unique<CoordinatorService>(std::move(options), servers_);
  }
  if (options_.on_open) options_.on_open();
}

RpcMessage ObserverSync::answer(const RpcRequest& request) {
  if (request.method == "server") {
    const auto shard = messages::value<int>(messages::parse(request.header, "server"), "shard");
    if (shard < 0 || shard >= servers_.size()) throw DataError("there is no such server");
    return {Json({{"address", options_.server(shard, deadline())}}).dump(), {}, {}};
  }
  {
    const std::lock_guard lock(mutex_);
    if (!service_) throw PeerError("the coordinator is about to start the run");
  }
  if (request.method == "layout") {
    return {Json::object().dump(), {std::as_bytes(std::span(*layout_))}, layout_};
  }
  if (request.method == "frozen") {
    return {Json::object().dump(), {messages::bytes_of(*frozen_)}, frozen_};
  }
  return service_->answer(request);
}

void ObserverSync::fetch() {
  if (!is_open()) return;
  const at::Tensor values = host_values(masters().size());
  std::vector<std::span<std::byte>> into;
  for (int shard = 0; shard < servers_.size(); ++shard) {
    into.push_back(shard_bytes(values, shard, servers_.size()));
  }
  const RpcMessage message{
      Json({{"run", options_.coordinator.run}, {"state", false}}).dump(), {}, {}};
  static_cast<void>(
      servers_.call_all("pull", std::vector(static_cast<std::size_t>(servers_.size()), message),
                        deadline_of_values(options_.job.timeout, values.nbytes()), into));
  take(values);
}

std::int64_t ObserverSync::fetch_all(std::int64_t step, std::span<const NamedState> state) {
  if (!is_open()) return 0;
  const std::int64_t kinds = states(state);
  const std::int64_t size = masters().size();
  // Paused over the pulls: an update in between would leave the servers' parts at different
  // versions, and the parts done would not be those in the values.
  done_ = service_->pause(step);
  const at::Tensor all = host_values((1 + kinds) * size);
  const RpcMessage message{
      Json({{"run", options_.coordinator.run}, {"state", true}}).dump(), {}, {}};
  const auto replies =
      servers_.call_all("pull", std::vector(static_cast<std::size_t>(servers_.size()), message),
                        deadline_of_values(options_.job.timeout, all.nbytes()));
  std::int64_t version = 0;
  round_ = 0;
  for (int shard = 0; shard < servers_.size(); ++shard) {
    const RpcReply& reply = replies[static_cast<std::size_t>(shard)];
    const IndexRange range = shard_range(masters().size(), shard, servers_.size());
    const at::Tensor values = messages::tensor_on(reply.body, arena().types().master);
    if (values.numel() != (1 + kinds) * range.count) {
      throw DataError("server " + std::to_string(shard) + " has sent values of another model");
    }
    for (std::int64_t kind = 0; kind <= kinds; ++kind) {
      all.narrow(0, kind * size + range.first, range.count)
          .copy_(values.narrow(0, kind * range.count, range.count));
    }
    const Json json = messages::parse(reply.header, "pull");
    version = std::max(version, messages::value<std::int64_t>(json, "version"));
    round_ = std::max(round_, messages::value<double>(json, "round"));
  }
  service_->resume();
  take(all.narrow(0, 0, size));
  for_each_state_of(
      masters(), arena(), state, kinds,
      [&](const at::Tensor& values, std::int64_t kind, std::int64_t begin, std::int64_t count) {
        values.copy_(all.narrow(0, (1 + kind) * size + begin, count));
      });
  return version;
}

void ObserverSync::save(StateDict& state) const {
  state.set(kParts, done_.parts);
  state.set(kPartsOfStep, options_.coordinator.coordinator.workers);
  state.set(kRound, round_);
  for (const auto& [step, figures] : done_.figures) {
    const std::string prefix = std::string(kFigures) + std::to_string(step) + ".";
    state.set(prefix + "loss", figures.loss);
    state.set(prefix + "weight", figures.weight);
    state.set(prefix + "valid", figures.valid);
    state.set(prefix + "norm", figures.norm);
    state.set(prefix + "updates", figures.updates);
    for (const auto& [staleness, updates] : figures.staleness) {
      state.set(prefix + std::string(kStaleness) + std::to_string(staleness), updates);
    }
  }
}

// Parts of another size are of no use: the steps that were under way are taken whole.
void ObserverSync::load(const StateDict& state) {
  done_ = {};
  round_ = state.numbers().contains(kRound) ? state.number(kRound) : 0;
  if (options_.job.staleness == 0 || !state.numbers().contains(kParts)) return;
  if (state.integer(kPartsOfStep) != options_.coordinator.coordinator.workers) return;
  done_.parts = state.integer(kParts);
  for (const auto& [name, number] : state.numbers()) {
    if (!name.starts_with(kFigures) || !name.ends_with(".loss")) continue;
    const std::string prefix = name.substr(0, name.size() - std::string_view("loss").size());
    const std::int64_t step = std::stoll(name.substr(kFigures.size()));
    StepFigures& figures = done_.figures[step];
    figures.loss = state.number(prefix + "loss");
    figures.weight = state.number(prefix + "weight");
    figures.valid = state.integer(prefix + "valid");
    figures.norm = state.number(prefix + "norm");
    figures.updates = state.integer(prefix + "updates");
    const std::string staleness = prefix + std::string(kStaleness);
    for (const auto& [key, updates] : state.numbers()) {
      if (!key.starts_with(staleness)) continue;
      figures.staleness[std::stoll(key.substr(staleness.size()))] = state.integer(key);
    }
  }
}

void ObserverSync::close() {
  if (!is_open()) return;
  // Workers first: they pull and push until they have left, and a server that has stopped answers
  // no more.
  service_->finish();
  const RpcMessage message{Json({{"run", options_.coordinator.run}}).dump(), {}, {}};
  servers_.notify_all("stop", message, deadline());
}

}  // namespace troika
