#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/checkpoint/encryption.h>
#include <troika/device/choose.h>
#include <troika/observe/log.h>
#include <troika/optim/schedule.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/timeouts.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/rpc/rpc.h>
#include <troika/server/island_sync.h>
#include <troika/server/observer_sync.h>
#include <troika/server/push_compressor.h>
#include <troika/server/server_optimizer.h>
#include <troika/server/shard_service.h>
#include <troika/server/worker_sync.h>
#include <troika/session/build_version.h>
#include <troika/session/host_position.h>
#include <troika/train/compared_dataset.h>
#include <troika/train/data_agreement.h>
#include <troika/train/guest_log.h>
#include <troika/train/job.h>
#include <troika/train/model_sources.h>
#include <troika/train/precision.h>
#include <troika/train/run_folder.h>
#include <troika/train/server_job.h>
#include <troika/train/stop_signals.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace troika {
namespace {

constexpr const char* kCoordinatorKey = "coordinator";
constexpr const char* kPhaseKey = "phase";  // of the job: open, or over before it was
constexpr Seconds kLook(2);

std::string server_key(int shard) {
  return "server/" + std::to_string(shard);
}

// The coordinator and the servers hold the model whole, and so does a worker of one rank.
Recipe whole_model(Recipe recipe) {
  ParallelOptions whole;
  whole.activation_checkpoint = recipe.parallel.activation_checkpoint;
  recipe.parallel = whole;
  recipe.elastic.min_data = 0;  // of data axes
  return recipe;
}

// One process of a job.
class ServerProcess {
 public:
  ServerProcess(const Recipe& loaded, const World& world, const RunOptions& options)
      : ServerProcess(loaded, world, options, "") {
    store_.emplace(open_job_store(world, start_deadline()));
  }
  // One that joins a job.
  ServerProcess(const Recipe& loaded, const World& world, const RunOptions& options,
                std::string coordinator)
      : given_(loaded),
        loaded_(whole_model(loaded)),
        world_(world),
        options_(options),
        place_(coordinator.empty() ? position_of_worker(loaded, world)
                                   : host_position(world, Environment::of_process())),
        recipe_(resolve_for_run(computing(), 1, Origins(), place_.value_or(HostPosition()))),
        settings_(*recipe_.sync.kind().servers(recipe_.sync.options())),
        coordinator_(std::move(coordinator)) {}

  // Those without a place come after those that the job was started with.
  void join(std::optional<int> place) {
    const StopSignals signals;
    const auto leaves = [&] { return !place && signals.received() != 0; };
    const int number = place.value_or(std::numeric_limits<int>::max());
    name_ = place ? name_of_worker(*place) : "a worker on " + host_text();
    GuestLog guest(coordinator_, leaves);
    if (!place) guest_ = &guest;
    if (settings_.island > 1) {
      train_in_island(number, leaves);
    } else {
      train_alone(number, leaves);
    }
  }

  RunReport run() {
    const int servers = settings_.servers;
    if (world_.rank == 0) return coordinate();
    // The coordinator takes a checkpoint first, and then tells the others that it is over.
    const StopSignals noted;
    if (world_.rank <= servers) {
      serve(world_.rank - 1);
    } else {
      work(world_.rank - 1 - servers);
    }
    return {};
  }

 private:
  [[nodiscard]] Deadline start_deadline() const { return Deadline::in(start_timeout(loaded_)); }
  // Whether all processes are of this host, and no others are to join.
  [[nodiscard]] bool is_one_host() const {
    return settings_.listen.empty() && (world_.nodes == 1 || world_.store.host == "127.0.0.1" ||
                                        world_.store.host == "localhost");
  }
  [[nodiscard]] RpcServerOptions listening(const std::string& at = "") const {
    RpcServerOptions options;
    options.listen = !at.empty() ? at : is_one_host() ? "127.0.0.1:0" : "0.0.0.0:0";
    options.tls = tls();
    return options;
  }
  [[nodiscard]] std::optional<TlsFiles> tls() const {
    const SecurityOptions& security = recipe_.security;
    if (!security.tls) return std::nullopt;
    return TlsFiles{security.certificate, security.key, security.authority};
  }
  // What a worker has in common with the job. Machines have devices and precisions of their own
  // where the recipe leaves them open, and layouts, connections, files.
  [[nodiscard]] std::string common_recipe() const {
    Recipe recipe;
    recipe.name = given_.name;
    recipe.seed = given_.seed;
    recipe.model = given_.model;
    recipe.data = given_.data;
    recipe.train = given_.train;
    recipe.train.device = Recipe().train.device;
    recipe.optimizer = given_.optimizer;
    recipe.sync = given_.sync;
    recipe.sync.options() = recipe.sync.kind().within_island(recipe.sync.options());
    recipe.compress = given_.compress;
    return to_toml(recipe);
  }
  // The address at which others reach a server of this process.
  [[nodiscard]] std::string address_of(const RpcServer& server) const {
    std::string host = "127.0.0.1";
    if (!is_one_host()) {
      const bool is_local = world_.store.host == "127.0.0.1" || world_.store.host == "localhost";
      // All are of this host, and others come to where the coordinator listens.
      host = is_local ? parse_endpoint(settings_.listen, "sync.listen").host
                      : local_address_towards(world_.store);
    }
    return Endpoint{host, static_cast<std::uint16_t>(server.port())}.describe();
  }
  [[nodiscard]] AddressOf address_of_server() {
    return
        [this](int shard, Deadline deadline) { return store_->get(server_key(shard), deadline); };
  }

  // What is pushed is compressed by; null: by nothing.
  [[nodiscard]] std::shared_ptr<const Codec> codec() const {
    return recipe_.compress.kind().codec(recipe_.compress.options(),
                                         static_cast<std::uint64_t>(recipe_.seed));
  }
  [[nodiscard]] int workers() const { return workers_of(recipe_, world_.size); }
  [[nodiscard]] bool takes_local_steps() const { return settings_.local_steps > 0; }
  [[nodiscard]] ServerJobOptions job_options() const {
    ServerJobOptions options;
    options.shards = settings_.servers;
    options.staleness = settings_.staleness;
    options.divides_by_staleness = settings_.divides_by_staleness;
    // Of gradients, which are those of local steps otherwise.
    options.grad_clip = takes_local_steps() ? 0 : recipe_.train.grad_clip;
    options.local_steps = settings_.local_steps;
    options.outer_lr = settings_.outer.lr;
    options.lease = settings_.lease;
    options.timeout = step_timeout(recipe_);
    options.connections.tls = tls();
    return options;
  }

  // The run as one of a single rank, whose steps the workers take.
  RunReport coordinate() {
    name_ = "rank 0 on " + host_text();
    std::atomic<ObserverSync*> observer = nullptr;
    RpcServerOptions small = listening(settings_.listen);  // it takes no values
    small.most_body_bytes = kMostHeaderBytes;
    const RpcServer server(small, [&](const RpcRequest& request) {
      if (observer == nullptr) throw PeerError("the coordinator is about to start the run");
      return observer.load()->answer(request);
    });
    store_->set(kCoordinatorKey, address_of(server));
    if (!settings_.listen.empty()) {
      log_info("workers may join: troika train RECIPE --join " + address_of(server));
    }
    RunOptions options = options_;
    options.on_data = [this](std::shared_ptr<const Dataset> data) { compare(std::move(data)); };
    options.doubt = [&] { return observer.load()->doubt(); };
    options.make_sync = [&](Arena& arena, const TrainerContext&) {
      auto made = std::make_unique<ObserverSync>(arena, observer_options());
      observer = made.get();
      return made;
    };
    if (takes_local_steps()) {
      options.optimizer = optimizer_of_servers(settings_, recipe_.optimizer);
    }
    World alone = world_;
    alone.rank = alone.local_rank = alone.node_rank = 0;
    alone.size = alone.local_size = alone.nodes = 1;
    on_open_ = [&] { store_->set(kPhaseKey, "open"); };
    RunReport report = run_training(loaded_, alone, options);
    store_->set(kPhaseKey, "over");  // also for those that are started again
    return report;
  }

  [[nodiscard]] ObserverOptions observer_options() {
    ObserverOptions options;
    options.on_open = on_open_;
    options.job = job_options();
    options.server = address_of_server();
    CoordinatorServiceOptions& service = options.coordinator;
    service.run = new_run_name();
    service.version = build_version();
    service.model_files = digests_of_model(given_.model);
    service.recipe = common_recipe();
    service.data = data_;
    options.treats_alike = takes_local_steps();
    service.learning_rate = [this](std::int64_t step) {
      if (takes_local_steps()) return settings_.outer.lr;
      return learning_rate(recipe_.optimizer, recipe_.train.steps, recipe_.train.global_batch_size,
                           step);
    };
    service.grad_clip = options.job.grad_clip;
    service.patience = static_cast<double>(std::max<std::int64_t>(1, settings_.local_steps));
    service.skips_nonfinite = recipe_.train.on_nonfinite == OnNonFinite::kSkip;
    service.timeout = options.job.timeout;
    service.start_timeout = start_timeout(recipe_);
    service.coordinator.workers = workers();
    service.coordinator.last_step = recipe_.train.steps;
    service.coordinator.global_batch_size = recipe_.train.global_batch_size;
    service.coordinator.staleness = options.job.staleness;
    service.coordinator.lease = options.job.lease;
    return options;
  }

  void serve(int shard) {
    ShardServiceOptions options;
    options.shard = shard;
    options.shards = settings_.servers;
    options.optimizer = optimizer_of_servers(settings_, recipe_.optimizer);
    options.save_every = settings_.save_every_updates;
    if (options.save_every > 0) {
      options.file =
          run_folder(recipe_) / "servers" / ("shard-" + std::to_string(shard) + ".safetensors");
    }
    options.key = key_of(recipe_);
    options.codec = codec();
    ShardService service(std::move(options));
    const RpcServer server(listening(),
                           [&](const RpcRequest& request) { return service.answer(request); });
    store_->set(server_key(shard), address_of(server));
    // The store goes with the job.
    while (!service.wait_for_stop(kLook)) {
      if (store_->is_set(kPhaseKey) && store_->get(kPhaseKey, start_deadline()) == "over") return;
    }
  }

  void work(int place) {
    coordinator_ = store_->get(kCoordinatorKey, start_deadline());
    if (store_->get(kPhaseKey, start_deadline()) == "over") return;
    name_ = name_of_worker(place);
    if (settings_.island > 1) {
      check(static_cast<bool>(options_.train_island), "a worker of several ranks");
      options_.train_island(coordinator_, place, place_.value_or(HostPosition()));
    } else {
      train_alone(place, {});
    }
  }

  [[nodiscard]] WorkerOptions worker_options(int place, const std::function<bool()>& leaves) {
    WorkerOptions options;
    options.job = job_options();
    options.coordinator = coordinator_;
    if (store_) options.server = address_of_server();
    options.version = build_version();
    options.model_files = digests_of_model(given_.model);
    options.recipe = common_recipe();
    options.data = data_;
    options.position = place;
    options.leaves = leaves;
    if (codec()) options.compressor = std::make_shared<PushCompressor>(codec());
    if (std::ranges::count(recipe_.debug.slow_workers, place) > 0) {
      options.slow_times = recipe_.debug.slow_times;
    }
    options.start_timeout = start_timeout(recipe_);
    return options;
  }

  // Those that join, or are started, are held to the coordinator's data.
  void compare(std::shared_ptr<const Dataset> dataset) {
    ComparedDatasetOptions options;
    options.name = name_;
    if (settings_.own_data) {
      options.own_data = OwnData::kYes;
      options.hint =
          "with sync.own_data = true all workers still need the same classes, scales and words: "
          "write them into [data]";
    } else {
      options.hint = same_files_hint("worker", given_.data.kind()) +
                     "; sync.own_data = true says that workers have their own on purpose";
    }
    data_ = std::make_shared<ComparedDataset>(std::move(dataset), std::move(options));
  }

  // `job` is of the ranks of this worker; null where it has one.
  void train(const Recipe& recipe, TrainerContext context, const Job* job) {
    const std::shared_ptr<const Dataset> dataset = open_dataset(
        recipe.data, traits_of(recipe.model).sample, static_cast<std::uint64_t>(recipe.seed));
    if (job != nullptr) {
      (void)DataAgreement(job->session(), job->start_patience(),
                          data_of_rank(dataset, *job, recipe.data.kind()));
    }
    compare(dataset);
    Trainer trainer(recipe, dataset, std::move(context));
    if (job != nullptr && job->rank() > 0) guest_ = nullptr;
    if (guest_ != nullptr) guest_->joined();
    while (trainer.work()) {
      if (guest_ != nullptr) guest_->passed(trainer.progress().step);
    }
    if (guest_ != nullptr) guest_->ended();
  }

  // Of this rank.
  void train_alone(int place, const std::function<bool()>& leaves) {
    const at::Device device =
        choose_device(recipe_.train.device, place_.value_or(HostPosition()), "train.device");
    apply(numeric_settings(recipe_.train), device);
    TrainerContext context;
    context.timeout = step_timeout(recipe_);
    context.device = device;
    context.make_sync = [&](Arena& arena, const TrainerContext&) {
      return std::make_unique<WorkerSync>(arena, worker_options(place, leaves));
    };
    train(recipe_, std::move(context), nullptr);
  }

  // Of all ranks of this world.
  void train_in_island(int place, const std::function<bool()>& leaves) {
    Recipe within = given_;
    within.sync.options() = within.sync.kind().within_island(within.sync.options());
    const Recipe recipe =
        resolve_for_run(within, world_.size, Origins(), place_.value_or(HostPosition()));
    const std::filesystem::path recorders = Environment::of_process().text_or(
        "TROIKA_RECORDERS", flight_folder(run_folder(recipe)).string());
    Job job(join_rendezvous(world_, recipe), recipe, recorders);
    try {
      TrainerContext context = job.context();
      apply(numeric_settings(recipe.train), context.device);
      agree_on_model(recipe.model, job);
      context.make_sync = [&](Arena& arena, const TrainerContext& ranks) {
        return std::make_unique<IslandSync>(arena, island_options(ranks, place, leaves));
      };
      train(recipe, std::move(context), &job);
    } catch (const Error& error) {
      job.abort(error);
      throw;
    }
    job.leave();
  }

  [[nodiscard]] IslandOptions island_options(const TrainerContext& ranks, int place,
                                             const std::function<bool()>& leaves) {
    const RankGroups& groups = ranks.groups;
    IslandOptions options;
    options.inside = {{groups.world},
                      PartialGroups{groups.tensor, groups.embedding},
                      ranks.timeout,
                      groups.pipeline.size() > 1 ? 2.0 : 1.0};
    options.ranks = groups.world;
    options.worker = worker_options(place, leaves);
    // The leader waits for others, who may train, save or evaluate. Should it die, it is told.
    options.longest_wait = std::max<std::int64_t>(1, settings_.local_steps) * ranks.timeout +
                           settings_.lease + options.worker.start_timeout +
                           Seconds(recipe_.checkpoint.timeout_seconds);
    return options;
  }

  // What does not train leaves devices to those that do.
  [[nodiscard]] const Recipe& computing() {
    if (!place_) loaded_.train.device = "cpu";
    return loaded_;
  }

  [[nodiscard]] static std::string host_text() {
    return "host " + Environment::of_process().host().name;
  }
  // Returns what messages call the worker at this place of those that the job is started with, by
  // the rank of the job that is this worker, or has started its ranks.
  [[nodiscard]] std::string name_of_worker(int place) const {
    return "rank " + std::to_string(1 + settings_.servers + place) + " on " + host_text();
  }

  const Recipe& given_;
  Recipe loaded_;  // with the model whole
  const World& world_;
  const RunOptions& options_;
  std::optional<HostPosition> place_;  // of what trains
  Recipe recipe_;                      // for a rank alone
  ServerSettings settings_;
  std::string coordinator_;  // its address, once it is known
  std::string name_;         // of this process, in messages
  std::shared_ptr<ComparedData> data_;
  GuestLog* guest_ = nullptr;  // of a worker that joins
  std::function<void()> on_open_;
  std::optional<Store> store_;  // none where this process joins a job
};

}  // namespace

bool has_servers(const Recipe& recipe) {
  return recipe.sync.kind().servers(recipe.sync.options()).has_value();
}

int processes_beside_workers(const Recipe& recipe) {
  const auto settings = recipe.sync.kind().servers(recipe.sync.options());
  return settings ? settings->servers + 1 : 0;
}

int workers_of(const Recipe& recipe, int processes) {
  const int beside = processes_beside_workers(recipe);
  if (processes > beside) return processes - beside;
  throw UsageError(std::to_string(processes) + " processes are too few: one coordinates, " +
                       std::to_string(beside - 1) + " keep parameters, and none is left to train",
                   "start " + std::to_string(beside + 1) + " or more");
}

std::optional<HostPosition> position_of_worker(const Recipe& recipe, const World& world) {
  const int beside = processes_beside_workers(recipe);
  if (world.rank < beside) return std::nullopt;
  HostPosition place = host_position(world, Environment::of_process());
  if (!world.located() || place.size == 1) return place;
  const int beside_here = std::clamp(beside - (world.rank - place.rank), 0, place.size);
  place.rank -= beside_here;
  place.size -= beside_here;
  return place;
}

int ranks_of_worker(const Recipe& recipe) {
  return static_cast<int>(recipe.sync.kind().servers(recipe.sync.options())->island);
}

void join_servers(const Recipe& recipe, const World& world, const std::string& coordinator,
                  std::optional<int> place) {
  const RunOptions none;
  ServerProcess(recipe, world, none, coordinator).join(place);
}

RunReport run_with_servers(const Recipe& recipe, const World& world, const RunOptions& options) {
  return ServerProcess(recipe, world, options).run();
}

}  // namespace troika
