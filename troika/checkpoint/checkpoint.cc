#include <torch/headeronly/version.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/version.h>
#include <troika/checkpoint/background_commit.h>
#include <troika/checkpoint/checkpoint.h>
#include <troika/checkpoint/find_newest.h>
#include <troika/checkpoint/model_parts.h>
#include <troika/checkpoint/optimizer_parts.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/checkpoint/write_lock.h>
#include <troika/observe/log.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>
#include <troika/parallel/data_parallel/grad_scaler.h>
#include <troika/session/consensus.h>

#include <exception>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr const char* kUser = "user.";

std::string dotted(const std::string& kind, const std::string& name) {
  if (name.empty()) return kind + ".";
  return kind + "." + name + ".";
}

}  // namespace

struct Checkpoint::Impl {
  struct NamedScaler {
    std::string prefix;
    GradScaler* scaler;
  };
  struct NamedSampler {
    std::string prefix;
    DistributedSampler* sampler;
  };

  Impl(std::filesystem::path path, const Session& the_session, const CheckpointSettings& settings)
      : session(Session::on(the_session.world(), settings.timeout)),
        device(the_session.device()),
        folder(std::move(path), key_from(settings.key, "CheckpointSettings::key")),
        commit(folder, the_session,
               {.keep = settings.keep, .timeout = settings.timeout, .check = [this] {
                  if (lock) lock->check_ownership();
                }}) {}

  void claim(const std::string& prefix) {
    if (names.insert(prefix).second) return;
    throw UsageError("a checkpoint has two " + quote(prefix) +
                         (prefix.empty() ? ": two models without a name" : ""),
                     "give each a name: checkpoint.add(model, \"generator\")");
  }
  [[nodiscard]] StateDict state() const;
  void restore_numbers(const StateDict& state);
  [[nodiscard]] std::vector<detail::Part> generators() const;
  // The places of what is being loaded.
  struct Loading {
    detail::PartReader places;
    std::vector<at::Tensor> generators;
  };
  void add_places(const StateReader& reader, Loading& loading);
  void finish(const StateReader& reader, Loading& loading);
  // Collective.
  void load(StateReader& reader);
  [[nodiscard]] CheckpointReaders readers() const;
  // Collective.
  void lock_folder();

  Session session;  // with the time-out for files
  at::Device device;
  CheckpointFolder folder;
  std::set<std::string> names;
  std::vector<detail::ModelParts> models;
  std::vector<detail::OptimizerParts> optimizers;
  std::vector<NamedScaler> scalers;
  std::vector<NamedSampler> samplers;
  std::map<std::string, StateDict::Number> numbers;
  bool is_locked = false;
  std::unique_ptr<WriteLock> lock;  // of rank 0
  BackgroundCommit commit;
};

// Copies: a generator gives and takes its state as a tensor.
std::vector<detail::Part> Checkpoint::Impl::generators() const {
  std::vector<detail::Part> parts;
  const auto add = [&](const char* name, const at::Generator& generator) {
    const at::Tensor bytes = generator.get_state();
    parts.push_back({"replica." + std::to_string(session.rank()) + "." + name,
                     ShardDescriptor::whole(bytes.sizes(), true), bytes});
  };
  add("generator", at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) add("device_generator", at::globalContext().defaultGenerator(device));
  return parts;
}

StateDict Checkpoint::Impl::state() const {
  const at::NoGradGuard no_autograd;
  StateDict state;
  for (const auto& model : models) model.save(state);
  for (const auto& optimizer : optimizers) optimizer.save(state);
  for (const detail::Part& part : generators()) detail::add_part(state, part);
  for (const NamedScaler& each : scalers) {
    state.set(each.prefix + "scale", each.scaler->state().scale);
    state.set(each.prefix + "good_steps", each.scaler->state().good_steps);
  }
  for (const NamedSampler& each : samplers) {
    const DistributedSampler::Position position = each.sampler->position();
    state.set(each.prefix + "epoch", static_cast<std::int64_t>(position.epoch));
    state.set(each.prefix + "taken", static_cast<std::int64_t>(position.taken));
  }
  for (const auto& [name, value] : numbers) state.set(kUser + name, value);
  return state;
}

void Checkpoint::Impl::restore_numbers(const StateDict& state) {
  for (const NamedScaler& each : scalers) {
    each.scaler->load({.scale = state.number(each.prefix + "scale"),
                       .good_steps = state.integer(each.prefix + "good_steps")});
  }
  for (const NamedSampler& each : samplers) {
    each.sampler->go_to(
        {.epoch = static_cast<std::uint64_t>(state.integer(each.prefix + "epoch")),
         .taken = static_cast<std::uint64_t>(state.integer(each.prefix + "taken"))});
  }
  for (const auto& [name, value] : state.numbers()) {
    if (name.starts_with(kUser)) numbers[name.substr(std::string_view(kUser).size())] = value;
  }
}

// Not before the first save: others may load what this program writes.
void Checkpoint::Impl::lock_folder() {
  if (is_locked) return;
  run_on_all_ranks(
      session,
      [&] {
        if (session.rank() > 0) return;
        lock = std::make_unique<WriteLock>(
            folder.path(),
            "two programs cannot write to one folder: give each its own, or stop one",
            LockedHere::kAllowed);
      },
      "checkpoint", NameRanks::kUnlessAll);
  is_locked = true;
}

CheckpointReaders Checkpoint::Impl::readers() const {
  return {session.rank(), session.size(),
          [this](const std::string& text) { return session.gather(text, "checkpoint"); },
          [](int rank) { return "rank " + std::to_string(rank); }};
}

void Checkpoint::Impl::add_places(const StateReader& reader, Loading& loading) {
  for (const auto& optimizer : optimizers) optimizer.check(reader);
  for (const auto& model : models) model.add_places(loading.places, reader);
  for (auto& optimizer : optimizers) optimizer.add_places(loading.places, reader);
  const std::string last = "replica." + std::to_string(session.size() - 1) + ".generator";
  const std::string beyond = "replica." + std::to_string(session.size()) + ".generator";
  if (!reader.has(last) || reader.has(beyond)) return;
  for (const detail::Part& part : generators()) {
    if (!reader.has(part.name)) continue;
    loading.places.add(part);
    loading.generators.push_back(part.tensor);
  }
}

void Checkpoint::Impl::finish(const StateReader& reader, Loading& loading) {
  loading.places.done();
  StateDict numbers_read;
  reader.set_numbers(numbers_read);
  for (const auto& optimizer : optimizers) optimizer.read_done(numbers_read);
  restore_numbers(numbers_read);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  for (const at::Tensor& state : loading.generators) {
    generator.set_state(state);
    if (!device.is_cpu()) generator = at::globalContext().defaultGenerator(device);
  }
}

// What can be refused is refused before anything has changed but values of the model.
void Checkpoint::Impl::load(StateReader& reader) {
  const at::NoGradGuard no_autograd;
  const auto on_all_ranks = [&](FunctionRef<void()> act) {
    run_on_all_ranks(session, act, "checkpoint", NameRanks::kUnlessAll);
  };
  Loading loading;
  on_all_ranks([&] {
    add_places(reader, loading);
    reader.check_wanted(loading.places.places());
  });
  const ReplicatedRead read(session.world(), loading.places.places(), session.timeout(),
                            reader.readers());
  on_all_ranks([&] { read.read([&](const StateTensor& part) { reader.read(part); }); });
  read.share();
  on_all_ranks([&] { finish(reader, loading); });
  for (const auto& model : models) model.read_done();
}

Checkpoint::Checkpoint(std::filesystem::path folder, const Session& session,
                       const CheckpointSettings& settings) {
  if (settings.keep < 1) {
    throw UsageError("a checkpoint with keep = " + std::to_string(settings.keep),
                     "at least the newest stays: write keep = 1 or more");
  }
  impl_ = std::make_unique<Impl>(std::move(folder), session, settings);
}

Checkpoint::~Checkpoint() {
  // Of ranks that all end for the same reason each is about to write its file. One that has died
  // is not: the wait is short.
  if (std::uncaught_exceptions() > 0) {
    impl_->commit.wait_until_done(Deadline::in(failure_timing::kInterruptGrace));
    return;
  }
  try {
    (void)impl_->commit.finish();
    // It could not be written, or ranks are gone. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

Checkpoint& Checkpoint::add(Replica& model, const std::string& name) {
  const std::string prefix = name.empty() ? "" : name + ".";
  impl_->claim(prefix);
  impl_->models.emplace_back(model, prefix);
  return *this;
}

Checkpoint& Checkpoint::add(ModulePipeline& model, const std::string& name) {
  const std::string prefix = name.empty() ? "" : name + ".";
  impl_->claim(prefix);
  impl_->models.emplace_back(model, prefix);
  return *this;
}

Checkpoint& Checkpoint::add(torch::optim::Optimizer& optimizer, const std::string& name) {
  const std::string prefix = dotted("optimizer", name);
  impl_->claim(prefix);
  impl_->optimizers.emplace_back(optimizer, prefix, impl_->models);
  return *this;
}

Checkpoint& Checkpoint::add(GradScaler& scaler, const std::string& name) {
  const std::string prefix = dotted("grad_scaler", name);
  impl_->claim(prefix);
  impl_->scalers.push_back({prefix, &scaler});
  return *this;
}

Checkpoint& Checkpoint::add(DistributedSampler& sampler, const std::string& name) {
  const std::string prefix = dotted("sampler", name);
  impl_->claim(prefix);
  impl_->samplers.push_back({prefix, &sampler});
  return *this;
}

void Checkpoint::set(const std::string& name, std::int64_t value) {
  impl_->numbers[name] = value;
}

void Checkpoint::set(const std::string& name, double value) {
  impl_->numbers[name] = value;
}

std::int64_t Checkpoint::integer(const std::string& name) const {
  StateDict state;
  for (const auto& [key, value] : impl_->numbers) state.set(key, value);
  return state.integer(name);
}

double Checkpoint::number(const std::string& name) const {
  StateDict state;
  for (const auto& [key, value] : impl_->numbers) state.set(key, value);
  return state.number(name);
}

std::optional<std::int64_t> Checkpoint::load() {
  std::optional<StateReader> reader = open_newest(
      impl_->folder, impl_->readers(), [](std::int64_t step, const std::string& problem) {
        log_warning("the checkpoint of step " + std::to_string(step) + " is not used: " + problem);
      });
  if (!reader) return std::nullopt;
  impl_->load(*reader);
  return reader->manifest().step;
}

void Checkpoint::save(std::int64_t step) {
  if (step < 0) throw UsageError("a checkpoint of step " + std::to_string(step));
  wait();
  impl_->lock_folder();
  Manifest manifest;
  manifest.step = step;
  manifest.provenance = {{"troika", std::string(kVersion)},
                         {"libtorch", TORCH_VERSION},
                         {"ranks", std::to_string(impl_->session.size())}};
  impl_->commit.begin(impl_->state(), std::move(manifest));
}

void Checkpoint::wait() {
  const std::string problem = impl_->commit.finish();
  if (problem.empty()) return;
  throw StorageError("a checkpoint cannot be written: " + problem, "what was there before is kept");
}

}  // namespace troika
