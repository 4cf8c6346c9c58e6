#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/observe/log.h>
#include <troika/optim/gradient_norm.h>
#include <troika/rendezvous/environment.h>
#include <troika/server/data_comparison.h>
#include <troika/server/messages.h>
#include <troika/server/server_shard.h>
#include <troika/server/worker_client.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

namespace troika {

using messages::Json;

namespace {

constexpr Seconds kBetweenCalls(0.05);
constexpr Seconds kLastWords(2);

// Whether the job has gone on without this worker: others have taken its place in the meantime.
bool tells_of_lost_lease(const RendezvousError& error) {
  return dynamic_cast<const PeerError*>(&error) == nullptr &&
         dynamic_cast<const DeadlineError*>(&error) == nullptr;
}

// Returns the places in `ids` of the rows that each server keeps.
std::vector<at::Tensor> places_by_shard(const at::Tensor& ids, int shards) {
  std::vector<std::vector<std::int64_t>> places(static_cast<std::size_t>(shards));
  const std::int64_t* const values = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    places[static_cast<std::size_t>(shard_of_row(values[i], shards))].push_back(i);
  }
  std::vector<at::Tensor> tensors;
  for (const auto& each : places) tensors.push_back(at::tensor(each, at::kLong));
  return tensors;
}

std::vector<std::vector<RowGradients>> split_rows(std::span<const RowGradients> rows, int shards) {
  std::vector<std::vector<RowGradients>> split(static_cast<std::size_t>(shards));
  for (const RowGradients& each : rows) {
    const std::vector<at::Tensor> places = places_by_shard(each.ids, shards);
    for (std::size_t shard = 0; shard < split.size(); ++shard) {
      split[shard].push_back({each.spec, each.ids.index_select(0, places[shard]),
                              each.values.index_select(0, places[shard])});
    }
  }
  return split;
}

}  // namespace

std::span<std::byte> shard_bytes(const at::Tensor& values, int shard, int shards) {
  const IndexRange range = shard_range(values.numel(), shard, shards);
  return messages::bytes_of(values.narrow(0, range.first, range.count));
}

WorkerClient::WorkerClient(WorkerOptions options, std::int64_t parameters, at::ScalarType type)
    : options_(std::move(options)),
      coordinator_(options_.coordinator, options_.job.connections),
      servers_(
          options_.job.shards,
          options_.server
              ? options_.server
              : [this](int shard,
                       Deadline until) { return address_from_coordinator(shard, until); },
          options_.job.connections),
      data_(
          std::make_unique<WorkerData>(options_.data, options_.position,
                                       [this](std::string_view method, const std::string& header) {
                                         return ask(method, header, deadline());
                                       })),
      buffer_(at::empty({parameters}, at::TensorOptions(type))) {
  join();
  heartbeats_ = std::jthread([this](const std::stop_token& stop) { send_heartbeats(stop); });
}

WorkerClient::~WorkerClient() {
  if (std::uncaught_exceptions() > exceptions_ && worker_ >= 0) {
    try {
      // Said before the connection is cancelled, and for a short time only: the job need not wait
      // for the lease, and this process has to end.
      (void)coordinator_.call("fail", {own_header(), {}, {}}, Deadline::in(kLastWords));
    } catch (const std::exception& error) {  // its lease tells
      log_debug(std::string("the coordinator has not heard of a failure: ") + error.what());
    }
  }
  // The calls are cancelled after the request: the heartbeat thread ends at once instead of calling
  // again.
  heartbeats_.request_stop();
  coordinator_.cancel();
  servers_.cancel();
}

RpcReply WorkerClient::ask(std::string_view method, const std::string& header, Deadline deadline) {
  std::optional<PeerError> before;
  for (;;) {
    try {
      return coordinator_.call(method, {header, {}, {}}, deadline);
    } catch (const PeerError& error) {
      if (deadline.left() <= kBetweenCalls) throw;
      before = error;
    } catch (const DeadlineError&) {
      // What it was refused for tells more than that a last try had no time left.
      if (before) throw PeerError(*before);
      throw;
    }
    std::this_thread::sleep_for(kBetweenCalls);
  }
}

// All values may be on their way, in either direction.
Deadline WorkerClient::deadline_of(std::span<const RpcMessage> messages) const {
  std::size_t bytes = buffer_.nbytes();
  for (const RpcMessage& message : messages) {
    for (const auto part : message.body) bytes += part.size();
  }
  return deadline_of_values(options_.job.timeout, bytes);
}

std::vector<RpcReply> WorkerClient::call_servers(std::string_view method,
                                                 std::span<const RpcMessage> messages,
                                                 std::span<const std::span<std::byte>> into) {
  std::vector<RpcReply> replies = servers_.call_all(method, messages, deadline_of(messages), into);
  for (const RpcMessage& message : messages) {
    traffic_.sent += message.header.size();
    for (const auto part : message.body) traffic_.sent += part.size();
  }
  for (const RpcReply& reply : replies) {
    traffic_.received += reply.header.size() + reply.body.size();
  }
  return replies;
}

std::string WorkerClient::address_from_coordinator(int shard, Deadline deadline) {
  const std::string header = Json({{"shard", shard}}).dump();
  const Json reply = messages::parse(ask("server", header, deadline).header, "server");
  return messages::value<std::string>(reply, "address");
}

FlatLayout WorkerClient::layout() {
  const RpcReply reply = ask("layout", own_header(), deadline());
  return FlatLayout::from(
      {reinterpret_cast<const char*>(reply.body.data()), reply.body.size()});  // NOLINT: bytes
}

at::Tensor WorkerClient::frozen_values() {
  const RpcReply reply = ask("frozen", own_header(), deadline());
  return messages::tensor_on(reply.body, at::kByte).clone();
}

void WorkerClient::make_buffer(std::int64_t parameters) {
  buffer_ = at::empty({parameters}, buffer_.options());
}

void WorkerClient::join() {
  Json header = {{"version", options_.version},
                 {"recipe", options_.recipe},
                 {"model_files", options_.model_files},
                 {"host", Environment::of_process().host().name},
                 {"place", options_.position}};
  // A join is repeated where its answer is lost. The coordinator then has a number that no process
  // uses, and its lease ends as that of a lost worker.
  if (worker_ >= 0) {
    header["before"] = worker_;
    header["before_run"] = run_;
  }
  data_->add_to_join(header);
  const Json reply = messages::parse(
      ask("join", header.dump(), Deadline::in(options_.start_timeout)).header, "join");
  data_->check_join(reply);
  const std::lock_guard lock(mutex_);
  worker_ = messages::value<int>(reply, "worker");
  run_ = messages::value<std::string>(reply, "run");
  assignment_.reset();
  pushed_.reset();
}

// Others have taken its place, and nothing tells what has become of its last push.
void WorkerClient::join_again(const RendezvousError& error) {
  log_warning(std::string(error.what()) + "; joining again");
  // The error to go on with depends on whether the last push was applied, which is not known: it is
  // dropped.
  if (options_.compressor) options_.compressor->reset();
  join();
}

std::string WorkerClient::own_header() {
  const std::lock_guard lock(mutex_);
  return Json({{"worker", worker_}, {"run", run_}}).dump();
}

// So that a pass that takes long is no silence.
void WorkerClient::send_heartbeats(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  while (!stopped.wait_for(lock, stop, options_.job.lease / 5, [] { return false; }) &&
         !stop.stop_requested()) {
    try {
      static_cast<void>(
          coordinator_.call("beat", {own_header(), {}, {}}, Deadline::in(options_.job.lease / 5)));
    } catch (const Error& error) {
      // The next call that matters tells.
      log_debug(std::string("no sign of life got through: ") + error.what());
    }
  }
}

std::optional<DealtSamples> WorkerClient::next_samples(const std::function<void()>& waits) {
  for (;;) {
    try {
      data_->check_contents(own_header());
      Json header = {{"worker", worker_}, {"run", run_}};
      if (options_.leaves && options_.leaves()) header["leaves"] = true;
      if (pushed_ && assignment_) {
        header["turn"] = assignment_->turn;
        header["report"] = messages::json_of(report());
      }
      const Json reply = messages::parse(ask("turn", header.dump(), deadline()).header, "turn");
      const auto state = messages::value<std::string>(reply, "state");
      if (state == "over") {
        end_push(messages::value<bool>(reply, "applied"));
        static_cast<void>(ask("leave", own_header(), deadline()));
        return std::nullopt;
      }
      if (state == "wait" && waits) waits();
      if (state == "again" && pushed_) {
        send_gradients();
      } else if (state == "samples") {
        end_push(messages::value<bool>(reply, "applied"));
        assignment_ = messages::assignment_of(messages::value<Json>(reply, "samples"));
        pushed_.reset();
        pull();
        dealt_ = Clock::now();
        return DealtSamples{assignment_->step, assignment_->samples};
      }
    } catch (const RendezvousError& error) {
      if (!tells_of_lost_lease(error)) throw;
      join_again(error);
    }
  }
}

WorkerReport WorkerClient::report() const {
  return {pushed_->loss,          pushed_->weight, pushed_->valid,  pushed_->norm,
          pushed_->learning_rate, staleness_,      pushed_->skipped};
}

void WorkerClient::pull() {
  const int shards = servers_.size();
  std::vector<std::span<std::byte>> into;
  for (int shard = 0; shard < shards; ++shard) into.push_back(shard_bytes(buffer_, shard, shards));
  const RpcMessage message{Json({{"run", run_}, {"state", false}}).dump(), {}, {}};
  const auto replies =
      call_servers("pull", std::vector(static_cast<std::size_t>(shards), message), into);
  versions_.clear();
  for (const RpcReply& reply : replies) {
    versions_.push_back(
        messages::value<std::int64_t>(messages::parse(reply.header, "pull"), "version"));
  }
}

void WorkerClient::push(const RemoteUpdate& update, std::vector<RowGradients> rows) {
  staleness_ = 0;
  pushed_ = update;
  pushed_rows_ = std::move(rows);
  if (options_.slow_times > 1) {
    std::this_thread::sleep_for((options_.slow_times - 1) * (Clock::now() - dealt_));
  }
  if (pushed_->skipped.empty() && options_.compressor) compress();
  if (!pushed_->skipped.empty()) return;
  try {
    send_gradients();
    // A synchronous step may still be left out.
    if (!is_synchronous()) end_push(true);
  } catch (const RendezvousError& error) {
    if (!tells_of_lost_lease(error)) throw;
    join_again(error);
  }
}

// Updates of one worker are of its mean gradient, and so is its error. Those of all together are of
// the sum over a step, which has about as many targets as the next one.
void WorkerClient::compress() {
  options_.compressor->encode(buffer_, servers_.size(), is_synchronous() ? 1 : pushed_->mean,
                              is_synchronous() ? assignment_->step : assignment_->turn,
                              static_cast<int>(options_.position));
  if (is_synchronous()) return;  // the sum of all is clipped
  double squares = squares_of(buffer_);
  for (const RowGradients& each : pushed_rows_) squares += squares_of(each.values);
  pushed_->norm = std::sqrt(squares) * pushed_->mean;
  if (std::isfinite(pushed_->norm)) {
    pushed_->scale = pushed_->mean * clip_factor(pushed_->norm, options_.job.grad_clip);
    return;
  }
  pushed_->skipped = "a compressed gradient is not finite";
  log_warning(pushed_->skipped + ", and is not pushed");
  end_push(false);
}

void WorkerClient::end_push(bool applied) {
  if (options_.compressor) options_.compressor->end_push(applied);
}

at::Tensor WorkerClient::pull_rows(const RowTableSpec& table, const at::Tensor& ids) {
  check(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_contiguous(),
        "rows are numbers of 64 bits, end to end");
  Json header = messages::json_of(table);
  header["run"] = run_;
  const int shards = servers_.size();
  const std::vector<at::Tensor> places = places_by_shard(ids, shards);
  std::vector<at::Tensor> wanted;
  std::vector<RpcMessage> requests;
  for (const at::Tensor& each : places) {
    wanted.push_back(ids.index_select(0, each));
    requests.push_back({header.dump(), {messages::bytes_of(wanted.back())}, {}});
  }
  const auto replies = call_servers("rows", requests);
  const at::Tensor rows = at::empty({ids.numel(), table.columns}, buffer_.options());
  for (std::size_t shard = 0; shard < replies.size(); ++shard) {
    const at::Tensor got = messages::tensor_on(replies[shard].body, buffer_.scalar_type());
    if (got.numel() != places[shard].numel() * table.columns) {
      throw DataError("server " + std::to_string(shard) + " has sent " +
                      std::to_string(got.numel()) + " values of " +
                      std::to_string(places[shard].numel()) + " rows of '" + table.name + "'");
    }
    rows.index_copy_(0, places[shard], got.view({-1, table.columns}));
  }
  return rows;
}

std::span<const std::byte> WorkerClient::gradient_bytes(int shard) const {
  if (options_.compressor) return options_.compressor->payload(shard);
  return shard_bytes(buffer_, shard, options_.job.shards);
}

void WorkerClient::send_gradients() {
  const RemoteUpdate& update = *pushed_;
  const int shards = servers_.size();
  std::vector<RpcMessage> requests;
  const std::vector<std::vector<RowGradients>> rows = split_rows(pushed_rows_, shards);
  for (int shard = 0; shard < shards; ++shard) {
    Json header;
    if (is_synchronous()) {
      header = {{"worker", worker_}, {"step", assignment_->step}};
    } else {
      header = messages::json_of(
          PushedUpdate{worker_, assignment_->turn, versions_[static_cast<std::size_t>(shard)],
                       update.learning_rate, update.scale, options_.job.divides_by_staleness,
                       messages::json_of(report()).dump(), assignment_->workers});
    }
    header["run"] = run_;
    if (options_.compressor) header["place"] = options_.position;
    RpcMessage request;
    messages::add_rows(header, request.body, rows[static_cast<std::size_t>(shard)]);
    request.body.emplace_back(gradient_bytes(shard));
    request.header = header.dump();
    requests.push_back(std::move(request));
  }
  const auto replies = call_servers(is_synchronous() ? "keep" : "push", requests);
  if (is_synchronous()) return;
  for (const RpcReply& reply : replies) {
    staleness_ = std::max(staleness_, messages::value<std::int64_t>(
                                          messages::parse(reply.header, "push"), "staleness"));
  }
}

}  // namespace troika
