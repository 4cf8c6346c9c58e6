// What a trainer's state consists of, and where it goes when a run goes on.
#include <ATen/ATen.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

std::string replica_name(int data_rank, const std::string& buffer) {
  return "replica." + std::to_string(data_rank) + "." + buffer;
}

// Of the replicas of a run that has several which differ.
std::string island_name(int island, const std::string& name) {
  return "island." + std::to_string(island) + "." + name;
}

}  // namespace

void Trainer::add_parameters(StateDict& state, const std::string& prefix, const ShardValues& values,
                             Of of) const {
  const Arena& arena = model_.arena();
  const bool writes = of == Of::kOwn || sync_->replicas().index == 0;
  for (std::size_t i = 0; i < arena.local_shards().size(); ++i) {
    const LocalShard& shard = arena.local_shards()[i];
    ShardDescriptor descriptor = ShardDescriptor::of(arena, shard);
    if (!writes) descriptor.owned = 0;
    state.add(prefix + arena.parameters()[shard.parameter]->spec().name, descriptor,
              values(i).view({-1}));
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

void Trainer::add_optimizer(StateDict& state, const std::string& prefix, Of of,
                            const std::function<bool(const std::string&)>& wanted) const {
  const auto& kind = optimizer_options().kind;
  const auto names = kind.kind().state_names(kind.options());
  const std::vector<NamedState> values = optimizer_->state();  // by shard, then by name
  for (std::size_t k = 0; k < names.size(); ++k) {
    const auto at = [&](std::size_t shard) { return values[shard * names.size() + k].tensor; };
    const std::string name = prefix + "optimizer." + std::string(names[k]) + ".";
    if (wanted && !wanted(name)) continue;
    if (of == Of::kAll && differs()) {
      add_parameters(state, name, [&](std::size_t shard) { return mean_of(at(shard)); });
    } else {
      add_parameters(state, name, at, of);
    }
  }
}

StateDict Trainer::model_state() {
  const at::NoGradGuard no_autograd;
  if (RemoteView* view = sync_->view()) view->fetch();
  StateDict state;
  add_parameters(state, "", [&](std::size_t shard) {
    const at::Tensor& master = model_.arena().local_shards()[shard].master;
    return differs() ? mean_of(master) : master;
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
  add_optimizer(state, "", Of::kAll);
  if (differs()) {
    const std::string prefix = island_name(sync_->replicas().index, "");
    add_parameters(
        state, prefix,
        [&](std::size_t shard) { return model_.arena().local_shards()[shard].master; }, Of::kOwn);
    add_optimizer(state, prefix, Of::kOwn);
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
  // What each island had goes on where there are as many; elsewhere their mean does.
  const std::string prefix =
      sync_->goes_on_apart(has) ? island_name(sync_->replicas().index, "") : "";
  add_parameters(
      state, prefix, [&](std::size_t shard) { return model_.arena().local_shards()[shard].master; },
      Of::kOwn);
  // The outer step of servers begins with zero in a run that was trained without one.
  const std::string any = model_.parameters().front().name;
  add_optimizer(state, prefix, Of::kOwn,
                [&](const std::string& name) { return !context_.optimizer || has(name + any); });
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
  StateDict state;
  add_parameters(state, "",
                 [&](std::size_t shard) { return model_.arena().local_shards()[shard].master; });
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.is_here) continue;
    state.add(buffer.name, ShardDescriptor::whole(buffer.tensor.sizes(), false),
              buffer.tensor.view({-1}));
  }
  return state;
}

void Trainer::adopt_values() {
  const at::NoGradGuard no_autograd;
  model_.arena().publish();
  sync_->refresh();
}

StateDict Trainer::gradients() const {
  StateDict state;
  add_parameters(state, "",
                 [&](std::size_t shard) { return model_.arena().local_shards()[shard].gradient; });
  return state;
}

std::vector<StateSpec> Trainer::gradient_specs() const {
  std::vector<StateSpec> specs;
  for (const ParameterSpec& spec : model_.parameters()) {
    specs.push_back({spec.name, spec.shape, model_.arena().types().master});
  }
  return specs;
}

std::vector<StateSpec> Trainer::model_specs() const {
  std::vector<StateSpec> specs = gradient_specs();
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    specs.push_back({buffer.name, buffer.tensor.sizes().vec(), buffer.tensor.scalar_type()});
  }
  std::ranges::sort(specs, {}, &StateSpec::name);
  return specs;
}

std::vector<StateSpec> Trainer::state_specs() const {
  std::vector<StateSpec> specs = model_specs();
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    for (int rank = 0; has_own_buffers() && rank < replicas(); ++rank) {
      specs.push_back({replica_name(rank, buffer.name), buffer.tensor.sizes().vec(),
                       buffer.tensor.scalar_type()});
    }
  }
  const auto& optimizer = optimizer_options().kind;
  for (const std::string_view kind : optimizer.kind().state_names(optimizer.options())) {
    for (const ParameterSpec& spec : model_.parameters()) {
      specs.push_back({"optimizer." + std::string(kind) + "." + spec.name, spec.shape,
                       model_.arena().types().master});
    }
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
