#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/tensors.h>
#include <troika/observe/log.h>
#include <troika/optim/gradient_norm.h>
#include <troika/server/coordinator_service.h>
#include <troika/server/messages.h>
#include <troika/server/own_servers.h>
#include <troika/server/push_compressor.h>
#include <troika/server/server_steps.h>
#include <troika/server/server_steps_options.h>
#include <troika/server/worker_client.h>
#include <troika/session/build_version.h>
#include <troika/session/consensus.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace troika {

using messages::Json;

namespace {

constexpr const char* kSaved = "servers.json";
constexpr std::uint64_t kMostSavedBytes = std::uint64_t{1} << 20;

}  // namespace

struct ServerSteps::Impl {
  // What a lookup has pulled, until its gradient is pushed.
  struct Lookup {
    RowTableSpec spec;
    at::Tensor ids, rows;  // the latter a leaf
  };

  Impl(std::shared_ptr<torch::nn::Module> the_module, Session the_session,
       ServerStepsOptions the_options)
      : module(std::move(the_module)),
        session(std::move(the_session)),
        options(std::move(the_options)) {
    if (options.compress) compressor = std::make_shared<PushCompressor>(options.compress);
    const torch::NoGradGuard no_grad;
    run_on_all_ranks(
        session,
        [&] {
          check_options(options, session.size());
          list_parameters();
        },
        "options of servers", NameRanks::kUnlessAll);
    agree();
    for (const at::Tensor& each : module->parameters()) broadcast(each, "parameters");
    for (const at::Tensor& each : module->buffers()) broadcast(each, "buffers");
    const std::string saved = saved_state();
    if (!saved.empty()) {
      saved_step = messages::value<std::int64_t>(messages::parse(saved, kSaved), "step");
    }
    own.emplace(session, server_options());
    begin(saved);
    join();
  }

  void list_parameters() {
    for (const at::Tensor& each : module->parameters()) {
      if (!each.is_contiguous()) {
        throw UsageError("ServerSteps takes parameters that are contiguous",
                         "parameter.set_data(parameter.contiguous()) makes one so");
      }
      if (!each.requires_grad()) continue;
      parameters.push_back(each);
      count += each.numel();
    }
    if (parameters.empty()) throw UsageError("ServerSteps: the module has no parameters to train");
    const auto is_double = [](const at::Tensor& each) { return each.scalar_type() == at::kDouble; };
    const auto doubles = std::ranges::count_if(parameters, is_double);
    if (doubles != 0 && doubles != std::ssize(parameters)) {
      throw UsageError("ServerSteps: some parameters are fp64 and others are not");
    }
    type = doubles != 0 ? at::kDouble : at::kFloat;
  }

  void agree() const {
    const auto difference =
        find_difference(session, description_of(*module, options), "modules of servers");
    if (!difference) return;
    throw UsageError("the modules or options of rank 0 and " +
                         ranks_in_words(difference->theirs.ranks) + " differ",
                     "every rank builds the same module, and gives the same options");
  }

  void broadcast(const at::Tensor& tensor, std::string_view label) const {
    session.world().broadcast(tensor, 0, session.call(label)).wait();
  }

  // What rank 0 finds in the folder; empty where there is nothing.
  [[nodiscard]] std::string saved_state() const {
    std::string own_text;
    run_on_all_ranks(
        session,
        [&] {
          if (session.rank() != 0 || options.folder.empty()) return;
          const std::filesystem::path file = options.folder / kSaved;
          if (!std::filesystem::exists(file)) return;
          own_text = read_file(file, kMostSavedBytes);
          const Json json = messages::parse(own_text, file.string());
          const auto servers = messages::value<int>(json, "servers");
          if (servers == options.servers) return;
          throw UsageError(shown_path(options.folder) + " was saved by " + std::to_string(servers) +
                               " servers, and there are " + std::to_string(options.servers),
                           "go on with as many");
        },
        "what servers have saved");
    return session.gather(own_text, "what servers have saved")[0];
  }

  [[nodiscard]] OwnServersOptions server_options() const {
    OwnServersOptions all;
    all.servers = options.servers;
    all.optimizer = options.optimizer;
    all.codec = options.compress;
    all.tls = options.tls;
    CoordinatorServiceOptions& service = all.coordinator;
    service.version = build_version();
    service.recipe = "module";
    service.grad_clip = options.grad_clip;
    service.skips_nonfinite = true;
    service.is_watched = false;
    service.timeout = session.timeout();
    service.start_timeout = session.timeout();
    service.coordinator.workers = session.size();
    service.coordinator.first_step = saved_step + 1;
    service.coordinator.first_ordinal = saved_step * options.batch_size;
    service.coordinator.last_step = next_stop();
    service.coordinator.global_batch_size = options.batch_size;
    service.coordinator.staleness = options.staleness;
    service.coordinator.lease = options.lease;
    return all;
  }

  // The step behind which all ranks meet next.
  [[nodiscard]] std::int64_t next_stop() const {
    if (options.save_every_steps == 0) return options.steps;
    const std::int64_t next =
        (saved_step / options.save_every_steps + 1) * options.save_every_steps;
    return std::min(next, options.steps);
  }

  // Gives this rank's server, if it has one, its part.
  void begin(const std::string& saved) {
    run_on_all_ranks(
        session,
        [&] {
          if (!saved.empty()) {
            if (own->has_server()) own->server().restore(server_file(saved_step), own->run());
            if (const auto file = buffers_file(saved_step); std::filesystem::exists(file)) {
              restore_buffers(file);
            }
          } else if (own->has_server()) {
            own->init(segments(), flat(), options.servers);
          }
        },
        "servers");
    if (!saved.empty()) {
      for (const at::Tensor& each : module->buffers()) broadcast(each, "buffers");
    }
  }

  [[nodiscard]] std::vector<ShardSegment> segments() const {
    std::vector<ShardSegment> all;
    for (const auto& each : module->named_parameters()) {
      if (each.value().requires_grad())
        all.push_back({each.key(), each.value().numel(), true, 1, {}});
    }
    return all;
  }

  [[nodiscard]] at::Tensor flat() const {
    const at::Tensor values = at::empty({count}, at::TensorOptions(type));
    for_each_part(values, [](const at::Tensor& parameter, const at::Tensor& part) {
      part.copy_(parameter.detach().view({-1}));
    });
    return values;
  }

  template <class Visit>
  void for_each_part(const at::Tensor& values, const Visit& visit) const {
    std::int64_t begin = 0;
    for (const at::Tensor& each : parameters) {
      visit(each, values.narrow(0, begin, each.numel()));
      begin += each.numel();
    }
  }

  void take() const {
    for_each_part(client->buffer(), [](const at::Tensor& parameter, const at::Tensor& part) {
      parameter.detach().view({-1}).copy_(part);
    });
  }

  // The one before has left.
  void join() {
    traffic_before = traffic();
    client.reset();
    WorkerOptions worker;
    worker.job.shards = options.servers;
    worker.job.staleness = options.staleness;
    worker.job.divides_by_staleness = options.divides_by_staleness;
    worker.job.grad_clip = options.grad_clip;
    worker.job.lease = options.lease;
    worker.job.timeout = session.timeout();
    worker.job.connections.tls = options.tls;
    worker.coordinator = own->coordinator_address();
    worker.server = [this](int shard, Deadline) { return own->server_address(shard); };
    worker.version = build_version();
    worker.recipe = "module";
    worker.position = session.rank();
    worker.start_timeout = session.timeout();
    worker.compressor = compressor;
    client.emplace(std::move(worker), count, type);
  }

  std::optional<StepSamples> next() {
    const torch::NoGradGuard no_grad;
    if (is_over) throw UsageError("ServerSteps: all steps are taken");
    for (;;) {
      if (const auto dealt = saved_step < options.steps ? client->next_samples() : std::nullopt) {
        take();
        lookups.clear();
        samples = {dealt->step, dealt->samples.first, dealt->samples.count};
        return samples;
      }
      session.barrier("the end of server steps");
      client->pull();
      take();
      for (const at::Tensor& each : module->buffers()) {
        if (!each.is_floating_point()) continue;
        session.world().all_reduce(each, ReduceOp::kAverage, session.call("buffers")).wait();
      }
      const std::int64_t before = saved_step;
      saved_step = next_stop();
      if (!options.folder.empty() && before < saved_step) save(before);
      is_over = saved_step == options.steps;
      if (is_over) return std::nullopt;
      // Between two barriers: all workers have left, and none has joined again.
      own->set_last_step(next_stop());
      session.barrier("the next server steps");
      join();
    }
  }

  void step(const Step& how) {
    push(how, [](const at::Tensor& parameter, const at::Tensor& part) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) {
        part.copy_(gradient.to_dense().view({-1}));
      } else {
        part.zero_();
      }
      gradient.reset();
    });
  }

  // The buffer has what was pulled.
  void push_change(const Step& how) {
    push(how, [](const at::Tensor& parameter, const at::Tensor& part) {
      part.sub_(parameter.detach().view({-1}).to(part.device(), part.scalar_type()));
      parameter.mutable_grad().reset();
    });
  }

  // `gradient(parameter, part)` puts that of a parameter in its part of the buffer.
  template <class Gradient>
  void push(const Step& how, const Gradient& gradient) {
    if (!samples) throw UsageError("ServerSteps: step() follows a next() that has given samples");
    const double weight = how.weight.value_or(static_cast<double>(samples->count));
    if (!(weight >= 0) || !std::isfinite(weight)) {
      throw UsageError("a step's weight is a number of targets, 0 or more");
    }
    const torch::NoGradGuard no_grad;
    samples.reset();
    for_each_part(client->buffer(), gradient);
    client->buffer().mul_(weight);
    std::vector<RowGradients> rows = take_rows(weight);
    RemoteUpdate update;
    update.learning_rate = how.learning_rate.value_or(options.optimizer.lr);
    update.weight = weight;
    update.mean = weight > 0 ? 1 / weight : 0;
    update.valid = static_cast<std::int64_t>(weight);
    if (weight > 0) {
      double squares = squares_of(client->buffer());
      for (const RowGradients& each : rows) squares += squares_of(each.values);
      update.norm = std::sqrt(squares) / weight;
      if (std::isfinite(update.norm)) {
        update.scale = clip_factor(update.norm, options.grad_clip) / weight;
      } else {
        update.skipped = "a gradient is not finite";
        log_warning("ServerSteps: a gradient of rank " + std::to_string(session.rank()) +
                    " is not finite, and is not applied");
      }
    } else {
      update.skipped = "none of its targets counts";
    }
    const bool is_pushed = update.skipped.empty();
    client->push(update, std::move(rows));
    if (is_pushed && options.staleness != 0) ++staleness[client->staleness()];
  }

  [[nodiscard]] static double squares_of(const at::Tensor& values) {
    return at::linalg_vector_norm(values, 2, std::nullopt, false, at::kDouble)
        .square()
        .item<double>();
  }

  // The gradients of rows, the lookups of a table together.
  std::vector<RowGradients> take_rows(double weight) {
    std::map<std::string, std::vector<RowGradients>> by_table;
    for (Lookup& each : lookups) {
      if (!each.rows.grad().defined()) continue;
      by_table[each.spec.name].push_back({each.spec, each.ids, each.rows.grad() * weight});
    }
    lookups.clear();
    std::vector<RowGradients> rows;
    for (const auto& [name, pushed] : by_table) rows.push_back(sum_of_rows(pushed));
    return rows;
  }

  at::Tensor lookup(const RowTableSpec& spec, const at::Tensor& ids) {
    if (ids.scalar_type() != at::kLong) {
      throw UsageError("the rows of the table '" + spec.name + "' are numbers of int64");
    }
    if (!own) throw UsageError("ServerSteps is closed, and its servers with it");
    at::Tensor leaf, unique, places;
    {
      const torch::NoGradGuard no_grad;
      std::tie(unique, places, std::ignore) = at::_unique2(
          ids.to(at::kCPU).contiguous().view({-1}), /*sorted=*/true, /*return_inverse=*/true);
      leaf = client->pull_rows(spec, unique);
    }
    if (torch::GradMode::is_enabled() && samples) {
      leaf.requires_grad_();
      lookups.push_back({spec, unique, leaf});
    }
    std::vector<std::int64_t> shape = ids.sizes().vec();
    shape.push_back(spec.columns);
    const at::Tensor& like = parameters.front();
    return leaf.index_select(0, places).view(shape).to(like.device(), like.scalar_type());
  }

  [[nodiscard]] std::filesystem::path step_folder(std::int64_t step) const {
    return options.folder / ("step-" + std::to_string(step));
  }
  [[nodiscard]] std::filesystem::path server_file(std::int64_t step) const {
    return step_folder(step) / ("server-" + std::to_string(session.rank()) + ".safetensors");
  }
  [[nodiscard]] std::filesystem::path buffers_file(std::int64_t step) const {
    return step_folder(step) / "buffers.safetensors";
  }

  // Each server a file, and then rank 0 says that they are there. What was saved before goes then.
  void save(std::int64_t before) {
    run_on_all_ranks(
        session,
        [&] {
          make_folders(step_folder(saved_step));
          if (own->has_server()) own->server().save_to(server_file(saved_step));
          if (session.rank() == 0) save_buffers(buffers_file(saved_step));
        },
        "save servers");
    run_on_all_ranks(
        session,
        [&] {
          if (session.rank() != 0) return;
          AtomicFile file(options.folder / kSaved);
          file.write(Json({{"step", saved_step}, {"servers", options.servers}}).dump() + "\n");
          file.commit();
        },
        "commit servers");
    // Only now that the new state is committed: until then a run that is killed goes on from the
    // one before.
    if (own->has_server() && before > 0) std::filesystem::remove(server_file(before));
    // Hosts may have disks of their own or share one: each removes its own file, and rank 0 the
    // folder when all have.
    session.barrier("remove what was saved before");
    if (session.rank() == 0 && before > 0) std::filesystem::remove_all(step_folder(before));
  }

  void save_buffers(const std::filesystem::path& file) const {
    std::vector<NamedTensor> tensors;
    for (const auto& each : module->named_buffers()) tensors.push_back({each.key(), each.value()});
    if (!tensors.empty()) save_tensors(file, tensors);
  }

  void restore_buffers(const std::filesystem::path& file) const {
    auto buffers = module->named_buffers();
    for (const NamedTensor& each : load_tensors(file)) {
      at::Tensor* const buffer = buffers.find(each.name);
      if (buffer == nullptr || buffer->sizes() != each.tensor.sizes()) {
        throw DataError(shown_path(file) + " has another buffer '" + each.name + "'");
      }
      buffer->copy_(each.tensor);
    }
  }

  // A client lasts as long as its samples do.
  [[nodiscard]] ServerTraffic traffic() const {
    ServerTraffic all = traffic_before;
    if (!client) return all;
    all.sent += client->traffic().sent;
    all.received += client->traffic().received;
    return all;
  }

  void close() {
    session.barrier("close servers");
    traffic_before = traffic();
    client.reset();
    session.barrier("close servers");
    own.reset();
  }

  std::shared_ptr<torch::nn::Module> module;
  Session session;
  ServerStepsOptions options;
  std::vector<at::Tensor> parameters;  // that are trained
  std::int64_t count = 0;              // of their elements
  at::ScalarType type = at::kFloat;    // of what goes over the wire
  std::int64_t saved_step = 0;         // behind which all ranks have met
  bool is_over = false;
  std::optional<OwnServers> own;
  std::shared_ptr<PushCompressor> compressor;  // outlasts clients; null: nothing is compressed
  std::optional<WorkerClient> client;          // ends before the servers
  ServerTraffic traffic_before;                // of clients that have ended
  std::optional<StepSamples> samples;          // that are to be pushed
  std::vector<Lookup> lookups;
  std::map<std::int64_t, std::int64_t> staleness;  // updates by theirs
};

ServerSteps::ServerSteps(std::shared_ptr<torch::nn::Module> module, Session session,
                         ServerStepsOptions options)
    : impl_(std::make_shared<Impl>(std::move(module), std::move(session), std::move(options))) {}
ServerSteps::ServerSteps(ServerSteps&&) noexcept = default;
ServerSteps& ServerSteps::operator=(ServerSteps&&) noexcept = default;
ServerSteps::~ServerSteps() = default;

std::optional<StepSamples> ServerSteps::next() {
  return impl_->next();
}

void ServerSteps::step(const Step& how) {
  impl_->step(how);
}

void ServerSteps::push_change(const Step& how) {
  impl_->push_change(how);
}

ServerTable ServerSteps::table(RowTableSpec spec) {
  if (spec.columns < 1) throw UsageError("the table '" + spec.name + "' needs columns");
  return {impl_, std::move(spec)};
}

ServerTraffic ServerSteps::traffic() const {
  return impl_->traffic();
}

const std::map<std::int64_t, std::int64_t>& ServerSteps::staleness() const {
  return impl_->staleness;
}

void ServerSteps::close() {
  impl_->close();
}

at::Tensor ServerTable::lookup(const at::Tensor& ids) const {
  return owner_->lookup(spec_, ids);
}

}  // namespace troika
