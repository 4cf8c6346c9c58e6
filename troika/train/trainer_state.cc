// What a trainer's state consists of, and where it goes when a run goes on.
#include <ATen/ATen.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

std::string replica_name(int data_rank, const std::string& buffer) {
  return "replica." + std::to_string(data_rank) + "." + buffer;
}

// In front of the parameters whose optimiser state it is.
std::string state_prefix(std::string_view kind) {
  return "optimizer." + std::string(kind) + ".";
}

std::string same_name(const std::string& parameter) {
  return parameter;
}

// Of the replicas of a run that has several which differ.
std::string island_name(int island, const std::string& name) {
  return "island." + std::to_string(island) + "." + name;
}

}  // namespace

void Trainer::add_parameters(StateDict& state, std::span<const LocalShard> shards,
                             const NameOf& name_of, const ShardValues& values, Of of) const {
  const Arena& arena = model_.arena();
  const bool writes = of == Of::kOwn || sync_->replicas().index == 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::string name = name_of(arena.parameters()[shards[i].parameter]->spec().name);
    if (name.empty()) continue;
    ShardDescriptor descriptor = ShardDescriptor::of(arena, shards[i]);
    if (!writes) descriptor.owned = 0;
    state.add(std::move(name), descriptor, values(i).view({-1}));
  }
}

at::Tensor Trainer::mean_of(const at::Tensor& values) const {
  at::Tensor mean = values.clone();
  sync_->average(mean);
  return mean;
}

// The averages are copies: a run that is looked at goes on as if it was not.
void Trainer::add_buffers(StateDict& state) const {
  const bool writes = replica() == 0 && groups().tensor.rank() == 0;
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.is_here) continue;
    at::Tensor value = buffer.tensor;
    if (has_own_buffers() && value.is_floating_point()) {
      value = value.clone();
      groups()
          .data.all_reduce(value, ReduceOp::kAverage, {"running statistics", deadline()})
          .wait();
      sync_->average(value);
    }
    state.add(buffer.name, ShardDescriptor::whole(value.sizes(), writes), value.view({-1}));
  }
}

void Trainer::add_optimizer(StateDict& state, const NameOf& name_of, Of of) const {
  const auto kinds = state_names();
  const std::vector<NamedState> values = optimizer_->state();  // by shard, then by name
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const auto own = [&](std::size_t shard) { return values[shard * kinds.size() + k].tensor; };
    const auto mean = [&](std::size_t shard) { return mean_of(own(shard)); };
    const bool averages = of == Of::kAll && differs();
    add_parameters(
        state, model_.arena().trained_shards(),
        [&](const std::string& name) { return name_of(state_prefix(kinds[k]) + name); },
        averages ? ShardValues(mean) : ShardValues(own), of);
  }
}

std::vector<std::string_view> Trainer::state_names() const {
  const auto& kind = optimizer_options().kind;
  return kind.kind().state_names(kind.options());
}

bool Trainer::has_any(const std::string& prefix, const HasTensor& has) const {
  return std::ranges::any_of(model_.parameters(),
                             [&](const ParameterSpec& each) { return has(prefix + each.name); });
}

std::vector<std::string> Trainer::unfrozen_since(const HasTensor& has) const {
  std::vector<std::string> names;
  const auto kinds = state_names();
  if (kinds.empty() || !has_any(state_prefix(kinds.front()), has)) return names;
  for (const ParameterSpec& spec : model_.parameters()) {
    if (!spec.frozen && !has(state_prefix(kinds.front()) + spec.name)) names.push_back(spec.name);
  }
  return names;
}

StateDict Trainer::model_state() {
  const at::NoGradGuard no_autograd;
  if (RemoteView* view = sync_->view()) view->fetch();
  StateDict state;
  const Arena& arena = model_.arena();
  const std::size_t trained = arena.trained_shards().size();
  add_parameters(state, arena.local_shards(), same_name, [&](std::size_t shard) {
    const at::Tensor& master = arena.local_shards()[shard].master;
    return differs() && shard < trained ? mean_of(master) : master;
  });
  add_buffers(state);
  return state;
}

StateDict Trainer::state() {
  const at::NoGradGuard no_autograd;
  StateDict state = model_state();
  if (RemoteView* view = sync_->view()) {
    // The views that `state` has are of the same memory.
    progress_.updates = view->fetch_all(progress_.step, optimizer_->state());
  }
  add_optimizer(state, same_name, Of::kAll);
  if (differs()) {  // in what is trained
    const auto own_name = [&](const std::string& name) {
      return island_name(sync_->replicas().index, name);
    };
    const auto shards = model_.arena().trained_shards();
    add_parameters(
        state, shards, own_name, [&](std::size_t shard) { return shards[shard].master; }, Of::kOwn);
    add_optimizer(state, own_name, Of::kOwn);
  }
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!has_own_buffers() || !buffer.is_here) continue;
    state.add(replica_name(replica(), buffer.name),
              ShardDescriptor::whole(buffer.tensor.sizes(), groups().tensor.rank() == 0),
              buffer.tensor.view({-1}));
  }
  state.set("step", progress_.step);
  state.set("samples_consumed", progress_.samples_consumed);
  state.set("tokens", progress_.tokens);
  state.set("updates", progress_.updates);
  if (scaler_) {
    state.set("loss_scale", scaler_->state().scale);
    state.set("good_steps", scaler_->state().good_steps);
  }
  sync_->save(state);
  return state;
}

StateDict Trainer::places(const std::function<bool(const std::string&)>& has) const {
  StateDict state;
  // What each island had goes on where there are as many; elsewhere their mean does, and so does
  // what was frozen, which islands have alike.
  const std::string prefix =
      sync_->goes_on_apart(has) ? island_name(sync_->replicas().index, "") : "";
  const auto shards = model_.arena().local_shards();
  add_parameters(
      state, shards,
      [&](const std::string& name) { return has(prefix + name) ? prefix + name : name; },
      [&](std::size_t shard) { return shards[shard].master; }, Of::kOwn);
  // State begins with zeros where the parameter was frozen: others have state there. The outer step
  // of servers begins with zeros in a run that was trained without one.
  const auto kinds = state_names();
  const bool has_state = !kinds.empty() && has_any(prefix + state_prefix(kinds.front()), has);
  add_optimizer(
      state,
      [&](const std::string& name) {
        const bool is_there = has(prefix + name) || (!has_state && !context_.optimizer);
        return is_there ? prefix + name : std::string();
      },
      Of::kOwn);
  sync_->add_places(state, has);
  const int rank = replica(), ranks = replicas();
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.is_here) continue;
    const bool is_own = has_own_buffers() && has(replica_name(ranks - 1, buffer.name)) &&
                        !has(replica_name(ranks, buffer.name));
    state.add(is_own ? replica_name(rank, buffer.name) : buffer.name,
              ShardDescriptor::whole(buffer.tensor.sizes(), false), buffer.tensor.view({-1}));
  }
  return state;
}

StateDict Trainer::model_places() const {
  return model_.places();
}

void Trainer::adopt_values() {
  const at::NoGradGuard no_autograd;
  model_.arena().publish();
  sync_->refresh();
}

StateDict Trainer::gradients() const {
  StateDict state;
  const auto shards = model_.arena().trained_shards();
  add_parameters(state, shards, same_name,
                 [&](std::size_t shard) { return shards[shard].gradient; });
  return state;
}

std::vector<StateSpec> Trainer::trained_specs(const std::string& prefix) const {
  std::vector<StateSpec> specs;
  for (const ParameterSpec& spec : model_.parameters()) {
    if (spec.frozen) continue;
    specs.push_back({prefix + spec.name, spec.shape, model_.arena().types().master});
  }
  return specs;
}

std::vector<StateSpec> Trainer::gradient_specs() const {
  return trained_specs("");
}

std::vector<StateSpec> Trainer::model_specs() const {
  return model_.specs();
}

std::vector<StateSpec> Trainer::state_specs() const {
  std::vector<StateSpec> specs = model_specs();
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    for (int rank = 0; has_own_buffers() && rank < replicas(); ++rank) {
      specs.push_back({replica_name(rank, buffer.name), buffer.tensor.sizes().vec(),
                       buffer.tensor.scalar_type()});
    }
  }
  for (const std::string_view kind : state_names()) {
    std::ranges::copy(trained_specs(state_prefix(kind)), std::back_inserter(specs));
  }
  std::ranges::sort(specs, {}, &StateSpec::name);
  return specs;
}

void Trainer::restore(const StateDict& state) {
  const at::NoGradGuard no_autograd;
  TrainProgress progress;
  progress.step = state.integer("step");
  progress.samples_consumed = state.integer("samples_consumed");
  progress.tokens = state.integer("tokens");
  progress.updates = state.integer("updates");
  // A run that had another precision has no scale.
  if (scaler_ && state.numbers().contains("loss_scale"))
    scaler_.emplace(LossScaler::State{state.number("loss_scale"), state.integer("good_steps")});
  sync_->load(state);
  progress_ = progress;
  adopt_values();
  start_loader();
}

}  // namespace troika
