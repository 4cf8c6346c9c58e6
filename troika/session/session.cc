#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/process_stop.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/comm/failure/fault_injector.h>
#include <troika/comm/gather.h>
#include <troika/config/key.h>
#include <troika/device/choose.h>
#include <troika/device/plugin.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>
#include <troika/observe/trace.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/store_watch.h>
#include <troika/session/build_version.h>
#include <troika/session/consensus.h>
#include <troika/session/host_position.h>
#include <troika/session/session.h>

#include <ATen/ATen.h>

#include <charconv>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

namespace troika {
namespace detail {

// The groups of a session, ended together when the launcher, or this rank, says that the job has
// failed.
class SessionGroups {
 public:
  void add(const Group& group) {
    const std::lock_guard lock(mutex_);
    if (reason_) group.abort(*reason_);
    groups_.push_back(group);
  }
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    for (const Group& group : groups_) group.abort(reason);
  }

 private:
  std::mutex mutex_;
  std::vector<Group> groups_;
  std::optional<std::string> reason_;
};

}  // namespace detail

namespace {

// Where the caller says, else where the launcher does.
std::filesystem::path recorder_folder(const SessionOptions& options) {
  if (!options.recorders.empty()) return options.recorders;
  return Environment::of_process().text_or("TROIKA_RECORDERS", "");
}

std::shared_ptr<Recorder> make_recorder(const std::filesystem::path& folder, const World& world) {
  if (world.size == 1 || folder.empty()) return Recorder::none();
  make_folders(folder);
  return Recorder::create(recorder_path(folder, world.rank), world.rank, world.host);
}

// A hang that the variable TROIKA_STOP_AT asks for, if it does.
std::shared_ptr<FaultInjector> make_fault_injector(const World& world) {
  const std::optional<std::string> text = Environment::of_process().text("TROIKA_STOP_AT");
  return text ? FaultInjector::parse(*text, world.rank, world.size) : nullptr;
}

// What all ranks must have in common, in the recipe's form, so that a difference is named.
Agreement agreement_of(const SessionOptions& options) {
  const bool in_order = options.reduction_order == EngineOptions::ReductionOrder::kInOrder;
  return {build_version(),
          "[session]\nname = \"" + options.name + "\"\nengine = \"" + options.engine +
              "\"\nreduction_order = \"" + (in_order ? "in order" : "fastest") + "\"\n",
          "the options of the session",
          "give the same options on all ranks (SessionOptions, troika_options)"};
}

void check_timeout(Seconds timeout, std::string_view name) {
  if (timeout.count() > 0 && timeout.count() <= kLongestTimeout) return;
  throw UsageError("SessionOptions::" + std::string(name) + " = " +
                   std::to_string(timeout.count()) + " s is out of range: (0, 10000000]");
}

void check_timeouts(const SessionOptions& options) {
  check_timeout(options.timeout, "timeout");
  check_timeout(options.rendezvous_timeout, "rendezvous_timeout");
}

// The launcher's, else the program's.
Seconds timeout_of(const SessionOptions& options) {
  constexpr const char* kVariable = "TROIKA_TIMEOUT";
  const std::string text = Environment::of_process().text_or(kVariable, "");
  if (text.empty()) return options.timeout;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && seconds > 0 && seconds <= kLongestTimeout) return Seconds(seconds);
  throw UsageError("environment variable " + std::string(kVariable) + "=" + quote(text) +
                   " is no number of seconds in (0, 10000000]");
}

// Before what else a program does with LibTorch, which asks once what devices there are.
void load_devices(const SessionOptions& options) {
  if (options.device != "cpu") static_cast<void>(load_device_plugin());
}

// As of Replica::weigh().
void check_count(double count) {
  if (count >= 0 && count <= std::numeric_limits<double>::max()) return;
  throw UsageError("average() takes a number of samples, not " + std::to_string(count));
}

}  // namespace

HostPosition host_position(const World& world, const Environment& environment) {
  const bool own = environment.has("SLURM_GPUS_PER_TASK") ||
                   environment.text_or("SLURM_TRES_PER_TASK", "").find("gpu") != std::string::npos;
  if (!world.located()) return {0, 1, own};
  const int first = environment.number(kFirstOnHost).value_or(0);
  return {first + world.local_rank, environment.number(kRanksOnHost).value_or(world.local_size),
          own};
}

struct Session::State {
  Seconds timeout{60};
  std::string device = "cpu";
  std::optional<Rendezvous> rendezvous;
  std::vector<Member> no_members;
  EngineOptions engine;  // what every group of the session is made with
  Group world;
  std::shared_ptr<detail::SessionGroups> groups = std::make_shared<detail::SessionGroups>();
  std::map<std::string, Group> duplicates;  // of world, by axis
  std::unique_ptr<StoreWatch> watch;        // for the launcher's message that the job has failed
};

Session Session::from_environment(const SessionOptions& options) {
  load_devices(options);
  const Environment environment = Environment::of_process();
  const std::optional<World> world = world_from_environment(environment);
  return join(world ? *world : single_process_world(environment), options);
}

Session Session::join(World world, const SessionOptions& options) {
  load_devices(options);
  check_timeouts(options);
  const Deadline deadline = Deadline::in(options.rendezvous_timeout);
  const int rank = world.rank;
  try {
    Rendezvous rendezvous = Rendezvous::join(std::move(world), agreement_of(options), deadline);
    return connect(std::move(rendezvous), options);
  } catch (const RendezvousError& error) {
    save_error(recorder_folder(options), rank, error);
    throw;
  }
}

Session Session::connect(Rendezvous rendezvous, const SessionOptions& options) {
  check_timeouts(options);
  auto state = std::make_shared<State>();
  state->timeout = timeout_of(options);
  state->device = options.device;
  state->rendezvous.emplace(std::move(rendezvous));
  const World& world = state->rendezvous->world();
  EngineOptions& engine = state->engine;
  engine.engine = options.engine;
  engine.store = world.size > 1 ? &state->rendezvous->store() : nullptr;
  engine.address = state->rendezvous->members()[static_cast<std::size_t>(world.rank)].address;
  engine.reduction_order = options.reduction_order;
  engine.ranks_on_host = state->rendezvous->ranks_on_host();
  engine.rendezvous_timeout = options.rendezvous_timeout;
  engine.recorders = recorder_folder(options);
  engine.observers = {make_recorder(engine.recorders, world), options.trace,
                      make_fault_injector(world)};
  std::vector<int> all_ranks(static_cast<std::size_t>(world.size));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  state->world = troika::make_group("world", std::move(all_ranks), world.rank, engine);
  state->groups->add(state->world);
  if (world.store_host == StoreHost::kLauncher && world.size > 1) {
    stop_clock_when_stopped();
    // A rank may wait for one that is gone without a connection to it; the launcher knows first.
    state->watch = std::make_unique<StoreWatch>(
        state->rendezvous->store(), abort_key(world.rank),
        [groups = state->groups](const std::string& reason) { groups->abort(reason); },
        [](const std::string&) {});
  }
  return Session(std::move(state));
}

Session Session::on(Group world, Seconds timeout) {
  auto state = std::make_shared<State>();
  state->timeout = timeout;
  state->world = std::move(world);
  return Session(std::move(state));
}

at::Device Session::device() const {
  return device_for(state_->device, "device");
}

at::Device Session::device_for(std::string_view word, const std::string& key) const {
  const HostPosition place =
      state_->rendezvous ? host_position(state_->rendezvous->world(), Environment::of_process())
                         : HostPosition{rank(), size()};
  return choose_device(word, place, key);
}

int Session::rank() const {
  return state_->world.rank();
}

int Session::size() const {
  return state_->world.size();
}

const Group& Session::world() const {
  return state_->world;
}

const std::vector<Member>& Session::members() const {
  return state_->rendezvous ? state_->rendezvous->members() : state_->no_members;
}

Group Session::make_group(std::string axis, std::vector<int> ranks, int index) const {
  if (!state_->rendezvous) {
    throw UsageError("a session on a group cannot make the group " + axis,
                     "make it where the session's group was made, or open the session with "
                     "Session::from_environment() or Session::join()");
  }
  try {
    Group group = troika::make_group(std::move(axis), std::move(ranks), index, state_->engine);
    state_->groups->add(group);
    return group;
  } catch (const RendezvousError&) {
    state_->engine.observers.recorder->record_error(std::current_exception());
    throw;
  }
}

Group Session::duplicate_world(const std::string& axis) const {
  const auto found = state_->duplicates.find(axis);
  if (found != state_->duplicates.end()) return found->second;
  std::vector<int> all_ranks(static_cast<std::size_t>(size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  return state_->duplicates.emplace(axis, make_group(axis, all_ranks, rank())).first->second;
}

void Session::abort(const std::string& reason) const {
  if (state_->rendezvous) {
    state_->groups->abort(reason);
  } else {
    state_->world.abort(reason);
  }
}

Store& Session::store() const {
  check(state_->rendezvous.has_value(), "a session on a group has no store");
  return state_->rendezvous->store();
}

Seconds Session::timeout() const {
  return state_->timeout;
}

void Session::reduce(std::span<double> values, ReduceOp op, std::string_view label) const {
  const at::Tensor tensor =
      at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  world().all_reduce(tensor, op, call(label)).wait();
}

void Session::seed_by_rank(std::uint64_t seed) const {
  at::manual_seed(stream_key(seed, "rank " + std::to_string(rank())));
}

double Session::average(double value, std::string_view label) const {
  reduce({&value, 1}, ReduceOp::kAverage, label);
  return value;
}

double Session::sum(double value, std::string_view label) const {
  reduce({&value, 1}, ReduceOp::kSum, label);
  return value;
}

double Session::average(double value, double count, std::string_view label) const {
  check_count(count);
  // What has no weight does not count, not even a NaN.
  double sums[] = {count == 0 ? 0 : value * count, count};
  reduce(sums, ReduceOp::kSum, label);
  return sums[1] == 0 ? std::numeric_limits<double>::quiet_NaN() : sums[0] / sums[1];
}

Session::Metrics Session::average(const Metrics& metrics, std::string_view label) const {
  return average(metrics, 1, label);
}

Session::Metrics Session::average(const Metrics& metrics, double count,
                                  std::string_view label) const {
  check_count(count);
  std::string names;
  for (const auto& [name, value] : metrics) names += (names.empty() ? "" : ", ") + name;
  if (const auto difference = find_difference(*this, names, label)) {
    const auto& [of_rank_zero, theirs] = *difference;
    throw UsageError("metrics '" + std::string(label) + "' are [" + theirs.text + "] on rank " +
                         std::to_string(theirs.ranks.front()) + ", and [" + of_rank_zero +
                         "] on rank 0",
                     "give the same metrics on all ranks");
  }
  std::vector<double> sums = {count};
  for (const auto& [name, value] : metrics) sums.push_back(count == 0 ? 0 : value * count);
  reduce(sums, ReduceOp::kSum, label);
  Metrics averages;
  std::size_t i = 0;
  for (const auto& [name, value] : metrics) {
    averages[name] = sums[0] == 0 ? std::numeric_limits<double>::quiet_NaN() : sums[++i] / sums[0];
  }
  return averages;
}

at::Tensor Session::average(const at::Tensor& tensor, std::string_view label) const {
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  world().all_reduce(result, ReduceOp::kAverage, call(label)).wait();
  return result;
}

at::Tensor Session::sum(const at::Tensor& tensor, std::string_view label) const {
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  world().all_reduce(result, ReduceOp::kSum, call(label)).wait();
  return result;
}

std::vector<std::string> Session::gather(std::string_view text, std::string_view label) const {
  const at::Tensor own = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), own.data_ptr<std::uint8_t>());
  const GatheredElements all = gather_elements(world(), own, call(label));
  std::vector<std::string> texts;
  const auto* next = reinterpret_cast<const char*>(all.elements.const_data_ptr());
  for (const std::int64_t count : all.counts) {
    texts.emplace_back(next, static_cast<std::size_t>(count));
    next += count;
  }
  return texts;
}

void Session::barrier(std::string_view label) const {
  world().barrier(call(label)).wait();
}

void Session::leave(Seconds timeout) const {
  if (state_->rendezvous) state_->rendezvous->leave(Deadline::in(timeout));
}

}  // namespace troika
