// What a trainer's state consists of, and where it goes when a run goes on.
#include <ATen/ATen.h>
#include <troika/param/flat_copies.h>
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

// Of the replicas of a run that has several which differ.
std::string island_name(int island, const std::string& name) {
  return "island." + std::to_string(island) + "." + name;
}

}  // namespace

// A parameter without a name is left out.
Trainer::NameOf Trainer::saved_name() const {
  return [this](const std::string& name) { return model_.is_saved(name) ? name : std::string(); };
}

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

// As few collectives as possible: over a slow link each takes as long as a message is on its way.
std::vector<at::Tensor> Trainer::means_of(std::span<const at::Tensor> values) const {
  const FlatCopies means(values);
  for (const at::Tensor& flat : means.flats()) sync_->average(flat);
  return {means.copies().begin(), means.copies().end()};
}

std::vector<at::Tensor> Trainer::trained_masters() const {
  std::vector<at::Tensor> masters;
  for (const LocalShard& shard : model_.arena().trained_shards()) masters.push_back(shard.master);
  return masters;
}

FlatCopies Trainer::mean_buffers() const {
  FlatCopies means(averaged_buffers());
  for (const at::Tensor& flat : means.flats()) {
    groups().data.all_reduce(flat, ReduceOp::kAverage, {"running statistics", deadline()}).wait();
    sync_->average(flat);
  }
  return means;
}

std::vector<at::Tensor> Trainer::averaged_buffers() const {
  std::vector<at::Tensor> buffers;
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!has_own_buffers() || !buffer.is_here || !buffer.tensor.is_floating_point()) continue;
    buffers.push_back(buffer.tensor);
  }
  return buffers;
}

void Trainer::average_buffers() const {
  mean_buffers().write_to(averaged_buffers());
}

// The averages are copies: a run that is looked at goes on as if it was not.
void Trainer::add_buffers(StateDict& state) const {
  const bool writes = replica() == 0 && groups().tensor.rank() == 0;
  const FlatCopies means = mean_buffers();
  auto mean = means.copies().begin();
  for (const ModelPart::Buffer& buffer : model_.buffers()) {
    if (!buffer.is_here) continue;
    const bool has_mean = has_own_buffers() && buffer.tensor.is_floating_point();
    const at::Tensor value = has_mean ? *mean++ : buffer.tensor;
    state.add(buffer.name, ShardDescriptor::whole(value.sizes(), writes), value.view({-1}));
  }
}

void Trainer::add_optimizer(StateDict& state, const NameOf& name_of, Of of) const {
  const auto kinds = state_names();
  const std::vector<NamedState> values = optimizer_->state();  // by shard, then by name
  const auto shards = model_.arena().trained_shards();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    std::vector<at::Tensor> of_kind;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      of_kind.push_back(values[i * kinds.size() + k].tensor);
    }
    if (of == Of::kAll && differs()) of_kind = means_of(of_kind);
    add_parameters(
        state, shards,
        [&](const std::string& name) { return name_of(state_prefix(kinds[k]) + name); },
        [&](std::size_t shard) { return of_kind[shard]; }, of);
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
  const std::vector<at::Tensor> means =
      differs() ? means_of(trained_masters()) : std::vector<at::Tensor>();
  add_parameters(state, arena.local_shards(), saved_name(), [&](std::size_t shard) {
    return shard < means.size() ? means[shard] : arena.local_shards()[shard].master;
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
  add_optimizer(state, std::identity(), Of::kAll);
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
      [&](const std::string& name) {
        if (!model_.is_saved(name)) return std::string();
        return has(prefix + name) ? prefix + name : name;
      },
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
  add_parameters(state, shards, std::identity(),
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
  std::vector<StateSpec> specs = model_.specs();
  std::erase_if(specs, [&](const StateSpec& each) { return !model_.is_saved(each.name); });
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
