#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/tensors.h>
#include <troika/observe/log.h>
#include <troika/server/messages.h>
#include <troika/server/push_compressor.h>
#include <troika/server/shard_service.h>

#include <algorithm>
#include <utility>

namespace troika {

using messages::Json;

namespace {

at::ScalarType type_named(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  throw DataError("a message of another process names the type '" + name + "'");
}

std::string name_of_type(at::ScalarType type) {
  return type == at::kDouble ? "float64" : "float32";
}

std::vector<ShardSegment> segments_of(const Json& json) {
  std::vector<ShardSegment> segments;
  for (const Json& each : messages::value<Json>(json, "pieces")) {
    segments.push_back(messages::segment_of(each));
  }
  return segments;
}

// What of a file is not the values.
Json json_of(const ServerShard::Applied& applied) {
  Json json = {{"step", applied.step},
               {"squares", messages::json_of(applied.squares)},
               {"fenced", applied.fenced},
               {"pushes", Json::array()}};
  for (const auto& [worker, last] : applied.pushes) {
    json["pushes"].push_back({{"worker", worker},
                              {"turn", last.turn},
                              {"staleness", last.staleness},
                              {"report", last.report}});
  }
  return json;
}

ServerShard::Applied applied_of(const Json& json) {
  ServerShard::Applied applied;
  applied.step = messages::value<std::int64_t>(json, "step");
  applied.squares = messages::number_of(json, "squares");
  applied.fenced = messages::value<std::set<int>>(json, "fenced");
  for (const Json& each : messages::value<Json>(json, "pushes")) {
    applied.pushes[messages::value<int>(each, "worker")] = {
        messages::value<std::int64_t>(each, "turn"),
        messages::value<std::int64_t>(each, "staleness"),
        messages::value<std::string>(each, "report")};
  }
  return applied;
}

// Files of versions that counted no rounds lack it.
double round_of(const Json& json) {
  if (!json.contains("round")) return 0;
  const auto round = messages::value<double>(json, "round");
  if (round >= 0 && round < 1) return round;
  throw DataError("a message of another process names no part of a round of pushes");
}

const std::string kTablePrefix = "table.";

}  // namespace

ShardService::ShardService(ShardServiceOptions options) : options_(std::move(options)) {}

ShardService::~ShardService() = default;

void ShardService::begin(const std::string& run, std::vector<ShardSegment> segments,
                         const at::Tensor& values, const ShardStart& start) {
  const at::NoGradGuard no_autograd;
  const std::lock_guard lock(mutex_);
  begin_run(run, std::move(segments), values, start);
}

void ShardService::begin_run(const std::string& run, std::vector<ShardSegment> segments,
                             const at::Tensor& values, const ShardStart& start) {
  if (run_ == run && shard_) return;  // repeated
  check_run(run);
  std::int64_t left = values.numel();
  for (const ShardSegment& segment : segments) {
    left -= segment.count;
    if (left < 0) {
      throw DataError("the coordinator has sent " + std::to_string(values.numel()) +
                      " values for more parameters than that");
    }
  }
  auto shard = std::make_unique<ServerShard>(options_.optimizer, segments, values.scalar_type(),
                                             options_.shards == 1);
  at::Tensor all = values;
  if (values.numel() == shard->size()) {
    all = at::zeros({(1 + shard->states()) * shard->size()}, values.options());
    all.narrow(0, 0, shard->size()).copy_(values);
  }
  if (all.numel() != (1 + shard->states()) * shard->size()) {
    throw DataError("the coordinator has sent " + std::to_string(values.numel()) +
                    " values for a shard of " + std::to_string(shard->size()) + " parameters");
  }
  shard->write_all(all, start.version, start.round);
  shard->set_applied({.step = start.step});
  shard_ = std::move(shard);
  segments_ = std::move(segments);
  run_ = run;
  has_warned_of_loss_ = true;
  save();
}

// A server that has died: its file is of this run.
void ShardService::load(const std::string& run) {
  if (options_.file.empty() || !std::filesystem::exists(options_.file)) return;
  const SafetensorsFile file(options_.file);
  const auto found = file.metadata().find("server");
  if (found == file.metadata().end()) return;
  const Json json = messages::parse(found->second, options_.file.string());
  if (messages::value<std::string>(json, "run") != run) return;
  read_file(options_.file, run);
  has_warned_of_loss_ = false;
  log_warning("server " + std::to_string(options_.shard) + " is back, with update " +
              std::to_string(shard_->version()) + " of its shard");
}

void ShardService::read_file(const std::filesystem::path& path, const std::string& run) {
  const SafetensorsFile file(path);
  const auto found = file.metadata().find("server");
  if (found == file.metadata().end()) {
    throw DataError(path.string() + " is not what a server has saved");
  }
  const Json json = messages::parse(found->second, path.string());
  std::vector<ShardSegment> segments = segments_of(json);
  const auto type = type_named(messages::value<std::string>(json, "type"));
  const auto values_of = [&](const std::string& name, at::ScalarType of) {
    return messages::tensor_on(file.data(file.at(name)), of).clone();
  };
  auto shard =
      std::make_unique<ServerShard>(options_.optimizer, segments, type, options_.shards == 1);
  shard->write_all(values_of("values", type), messages::value<std::int64_t>(json, "version"),
                   round_of(json));
  shard->set_applied(applied_of(messages::value<Json>(json, "applied")));
  for (const Json& each : messages::value<Json>(json, "tables")) {
    RowTable& table = shard->table(messages::table_of(each));
    const std::string name = kTablePrefix + table.spec().name;
    RowTable::Content content;
    content.ids = values_of(name + ".ids", at::kLong);
    const std::vector<std::int64_t> shape = {content.ids.numel(), table.spec().columns};
    content.values = values_of(name + ".values", type).view(shape);
    for (std::int64_t i = 0; i < messages::value<std::int64_t>(each, "states"); ++i) {
      content.states.push_back(values_of(name + ".state." + std::to_string(i), type).view(shape));
    }
    table.restore(content);
  }
  shard_ = std::move(shard);
  segments_ = std::move(segments);
  run_ = run;
  saved_version_ = shard_->version();
}

void ShardService::restore(const std::filesystem::path& file, const std::string& run) {
  const at::NoGradGuard no_autograd;
  const std::lock_guard lock(mutex_);
  read_file(file, run);
  // Workers of the run that has written it are no longer there, and numbers begin anew.
  ServerShard::Applied applied;
  applied.step = shard_->applied().step;
  shard_->set_applied(std::move(applied));
}

// A server keeps the parameters of one run in its life.
void ShardService::check_run(const std::string& run) const {
  if (!shard_ || run_ == run) return;
  throw RendezvousError("server " + std::to_string(options_.shard) + " is of another run",
                        "does the process belong to a job that has ended?");
}

ServerShard& ShardService::shard_of(const std::string& run) {
  check_run(run);
  if (!shard_) load(run);
  if (!shard_) {
    throw PeerError("server " + std::to_string(options_.shard) + " has no parameters of this run");
  }
  return *shard_;
}

void ShardService::save() {
  saved_version_ = shard_->version();
  if (!options_.file.empty()) write_file(options_.file);
}

void ShardService::save_to(const std::filesystem::path& file) {
  const at::NoGradGuard no_autograd;
  const std::lock_guard lock(mutex_);
  check(shard_ != nullptr, "a server without parameters has nothing to save");
  write_file(file);
}

void ShardService::write_file(const std::filesystem::path& file) const {
  const at::Tensor values =
      at::empty({(1 + shard_->states()) * shard_->size()}, at::TensorOptions(shard_->type()));
  shard_->read_all(values);
  Json json = {{"run", run_},
               {"version", shard_->version()},
               {"round", shard_->round()},
               {"applied", json_of(shard_->applied())},
               {"type", name_of_type(shard_->type())},
               {"pieces", Json::array()},
               {"tables", Json::array()}};
  for (const ShardSegment& segment : segments_)
    json["pieces"].push_back(messages::json_of(segment));
  std::vector<NamedTensor> tensors = {{"values", values}};
  for (const auto& [name, table] : shard_->tables()) {
    const RowTable::Content content = table.content();
    json["tables"].push_back(messages::json_of(table.spec()));
    json["tables"].back()["states"] = std::ssize(content.states);
    tensors.push_back({kTablePrefix + name + ".ids", content.ids});
    tensors.push_back({kTablePrefix + name + ".values", content.values});
    for (std::size_t i = 0; i < content.states.size(); ++i) {
      tensors.push_back({kTablePrefix + name + ".state." + std::to_string(i), content.states[i]});
    }
  }
  make_folders(file.parent_path());
  save_tensors(file, tensors, {{"server", json.dump()}}, options_.key);
}

void ShardService::save_if_due() {
  if (options_.save_every > 0 && shard_->version() - saved_version_ >= options_.save_every) save();
}

// Workers that pull the same values get the same memory, which is taken again once it is sent.
RpcMessage ShardService::pull(bool with_state) {
  const auto header = Json({{"version", shard_->version()}, {"round", shard_->round()}}).dump();
  const auto room_for = [&](std::int64_t count) {
    return std::make_shared<at::Tensor>(at::empty({count}, at::TensorOptions(shard_->type())));
  };
  if (with_state) {
    const auto all = room_for((1 + shard_->states()) * shard_->size());
    shard_->read_all(*all);
    return {header, {messages::bytes_of(*all)}, all};
  }
  if (!pulled_ || pulled_version_ != shard_->version()) {
    // The memory is written over only where no reply is being sent from it.
    if (!pulled_ || pulled_.use_count() > 1) pulled_ = room_for(shard_->size());
    shard_->read(*pulled_);
    pulled_version_ = shard_->version();
  }
  return {header, {messages::bytes_of(*pulled_)}, pulled_};
}

at::Tensor ShardService::gradient_of(std::span<const std::byte> body, std::int64_t round,
                                     int sender) {
  if (!options_.codec) return messages::tensor_on(body, shard_->type());
  if (!decoded_.defined()) {
    decoded_ = at::empty({shard_->size()}, at::TensorOptions(shard_->type()));
  }
  decode_push(*options_.codec, body, decoded_, {options_.shard, round, sender});
  return decoded_;
}

void ShardService::warn_of_lost_updates(std::int64_t version) {
  if (std::exchange(has_warned_of_loss_, true) || version <= shard_->version()) return;
  log_warning("server " + std::to_string(options_.shard) + " has lost " +
              std::to_string(version - shard_->version()) + " updates that it had acknowledged");
}

RpcMessage ShardService::answer(const RpcRequest& request) {
  const at::NoGradGuard no_autograd;
  const Json json = messages::parse(request.header, request.method);
  const auto run = messages::value<std::string>(json, "run");
  const std::lock_guard lock(mutex_);
  const auto text = [](const Json& reply) { return RpcMessage{reply.dump(), {}, {}}; };
  if (request.method == "stop") {
    check_run(run);
    stops_ = true;
    stopping_.notify_all();
    return text(Json::object());
  }
  if (request.method == "init") {
    const auto type = type_named(messages::value<std::string>(json, "type"));
    begin_run(run, segments_of(json), messages::tensor_on(request.body, type),
              {messages::value<std::int64_t>(json, "version"),
               messages::value<std::int64_t>(json, "step"), round_of(json)});
    return text({{"version", shard_->version()}});
  }
  ServerShard& shard = shard_of(run);
  std::span<const std::byte> body = request.body;
  const auto place = [&] { return options_.codec ? messages::value<int>(json, "place") : 0; };
  if (request.method == "push") {
    const PushedUpdate update = messages::update_of(json);
    warn_of_lost_updates(update.version);
    const std::vector<RowGradients> rows = messages::take_rows(json, body, shard.type());
    const ServerShard::Pushed pushed =
        shard.push(update, gradient_of(body, update.turn, place()), rows);
    save_if_due();
    return text({{"version", pushed.version}, {"staleness", pushed.staleness}});
  }
  if (request.method == "keep") {
    const std::vector<RowGradients> rows = messages::take_rows(json, body, shard.type());
    const auto step = messages::value<std::int64_t>(json, "step");
    shard.store(messages::value<int>(json, "worker"), step, gradient_of(body, step, place()), rows);
    return text(Json::object());
  }
  if (request.method == "sum") {
    const auto workers = messages::value<std::vector<int>>(json, "workers");
    const ServerShard::Sum sum = shard.sum(messages::value<std::int64_t>(json, "step"), workers);
    return text({{"missing", sum.missing}, {"squares", messages::json_of(sum.squares)}});
  }
  if (request.method == "apply") {
    const auto version =
        shard.apply(messages::value<std::int64_t>(json, "step"),
                    messages::value<double>(json, "lr"), messages::value<double>(json, "scale"));
    if (!version) return text({{"lost", true}});
    save_if_due();
    return text({{"lost", false}});
  }
  if (request.method == "pull") {
    return pull(messages::value<bool>(json, "state"));
  }
  if (request.method == "rows") {
    RowTable& table = shard.table(messages::table_of(json));
    const auto rows =
        std::make_shared<at::Tensor>(table.read(messages::tensor_on(body, at::kLong)));
    return {Json::object().dump(), {messages::bytes_of(*rows)}, rows};
  }
  if (request.method == "fence") {
    const ServerShard::LastPush last = shard.fence(messages::value<int>(json, "worker"));
    // What it was at is dealt out again: it must not be let in by a server that has died.
    if (options_.save_every > 0) save();
    return text({{"turn", last.turn}, {"staleness", last.staleness}, {"report", last.report}});
  }
  if (request.method == "save") {
    save();
    return text({{"version", shard.version()}});
  }
  throw DataError("a server knows no '" + request.method + "'");
}

bool ShardService::wait_for_stop(Seconds patience) {
  std::unique_lock lock(mutex_);
  return stopping_.wait_for(lock, patience, [this] { return stops_; });
}

}  // namespace troika
