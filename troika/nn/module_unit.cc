#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/device/device_error.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/module_unit.h>
#include <troika/nn/random_draws.h>
#include <troika/nn/sample_draws.h>

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_set>
#include <utility>

namespace troika {

struct ModuleUnit::State final : UnitState {
  Tensors in;
  Tensors outputs;                  // of the module; with a loss, its sum alone
  std::vector<at::Tensor> buffers;  // as they were before a forward pass ran again
};

namespace {

constexpr const char* kNotInPlace =
    "its first operation must not be in place (ReLU with inplace = true)";

// Names the draws of one pass: those of other samples, and of other steps, are others.
std::string draws_of(const std::string& unit, const Microbatch& microbatch) {
  const at::Tensor& ids = microbatch.sample_ids;
  const bool knows = ids.defined() && ids.is_cpu() && ids.numel() > 0;
  const std::int64_t first = knows ? ids.const_data_ptr<std::int64_t>()[0] : microbatch.index;
  return unit + " " + std::to_string(microbatch.step) + " " + std::to_string(first);
}

// In place of values that are elsewhere: of the same shape, without memory, and seen where they are
// used all the same.
at::Tensor nothing_like(const at::Tensor& tensor) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(),
                  tensor.options().requires_grad(false))
      .expand(tensor.sizes());
}

std::size_t position_of(const std::vector<UnitTensor>& tensors, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(tensors, name, &UnitTensor::name) -
                                  tensors.begin());
}

void describe(std::ostream& text, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    text << "nothing";
    return;
  }
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
}

}  // namespace

ModuleUnit::ModuleUnit(const NamedUnit& unit, std::vector<UnitTensor> in,
                       std::vector<UnitTensor> out, UnitLoss loss, Recompute recompute,
                       at::ScalarType type)
    : name_(unit.name),
      prefix_(unit.prefix.value_or(unit.name + ".")),
      describe_(unit.describe),
      runs_without_samples_(unit.runs_without_samples),
      seed_(unit.seed),
      sample_seed_(unit.sample_seed),
      made_(unit.make()),
      takes_(unit.flow.takes),
      gives_(unit.flow.gives),
      in_(std::move(in)),
      out_(std::move(out)),
      loss_(std::move(loss)),
      recompute_(recompute),
      type_(type) {
  if (made_.module == nullptr) throw UsageError("unit " + quote(name_, 200) + " makes no module");
  for (const UnitTensor& each : out_) {
    const std::size_t given = position_of(gives_, each.name);
    const bool is_given = given < gives_.size();
    origins_.push_back({is_given, is_given ? given : position_of(in_, each.name)});
  }
  // Narrower types leave buffers, and norms, in fp32.
  if (describe_ && type_ == at::kDouble) detail::widen(*made_.module);
  find_parameters();
}

ModuleUnit::~ModuleUnit() = default;

void ModuleUnit::find_parameters() {
  std::unordered_set<const void*> known;
  for (const Bound& each : bound_) known.insert(each.tensor.unsafeGetTensorImpl());
  for (NamedTensor& each : detail::trained_of(*made_.module)) {
    if (known.contains(each.tensor.unsafeGetTensorImpl())) continue;
    Bound bound{prefix_ + each.name, std::move(each.tensor)};
    const at::ScalarType type = describe_ ? bound.tensor.scalar_type() : type_;
    if (const std::string problem = detail::validate_parameter(bound.name, bound.tensor, type);
        !problem.empty()) {
      throw UsageError(problem,
                       "units make dense fp32 or fp64 parameters in host memory, all of the type "
                       "that the options name; ModulePipelineOptions::device moves them");
    }
    bound_.push_back(std::move(bound));
  }
}

std::vector<ParameterSpec> ModuleUnit::specs() const {
  std::vector<ParameterSpec> specs;
  for (const Bound& each : bound_) {
    ParameterSpec& spec = specs.emplace_back();
    if (const auto pair = pairs_.find(each.name); pair != pairs_.end()) spec = pair->second;
    spec.name = each.name;
    spec.shape = each.tensor.sizes().vec();
    if (describe_) describe_(spec);
  }
  return specs;
}

void ModuleUnit::bind(const Arena& arena) {
  keeps_working_weights_ = arena.keeps_working_weights();
  device_ = arena.device();
  if (!device_.is_cpu()) made_.module->to(device_);
  for (Bound& each : bound_) {
    each.parameter = &arena.parameter(each.name);
    if (!each.parameter->is_trained()) each.tensor.requires_grad_(false);
  }
}

void ModuleUnit::check_trained() const {
  std::unordered_set<const void*> known, now;
  for (const Bound& each : bound_) known.insert(each.tensor.unsafeGetTensorImpl());
  const std::string hint =
      "make a new ModulePipeline, and its optimiser, when other parameters are to be trained";
  for (const NamedTensor& each : detail::trained_of(*made_.module)) {
    now.insert(each.tensor.unsafeGetTensorImpl());
    if (known.contains(each.tensor.unsafeGetTensorImpl())) continue;
    throw UsageError("parameter " + quote(prefix_ + each.name, 200) +
                         " was added to the unit, or set to be trained, after the model was made",
                     hint);
  }
  for (const Bound& each : bound_) {
    if (now.contains(each.tensor.unsafeGetTensorImpl())) continue;
    throw UsageError("parameter " + quote(each.name, 200) +
                         " was frozen, or taken out of the unit, after the model was made",
                     hint);
  }
}

void ModuleUnit::store(const Arena& arena) {
  check_trained();
  const at::NoGradGuard no_grad;
  bool stored = false;
  for (Bound& each : bound_) {
    const bool as_given =
        each.given.defined() && each.tensor.const_data_ptr() == each.given.const_data_ptr();
    if (as_given) continue;
    if (each.tensor.sizes() != at::IntArrayRef(each.parameter->spec().shape)) {
      throw UsageError("parameter " + quote(each.name, 200) + " has another shape than at first");
    }
    stored = true;
    if (keeps_working_weights_) {  // what others update as well: the module is whole at once
      each.parameter->working_weight().copy_(each.tensor);
      continue;
    }
    for (const LocalShard& shard : arena.local_shards()) {
      if (arena.parameters()[shard.parameter].get() != each.parameter) continue;
      shard.master.copy_(each.tensor.reshape({-1}).narrow(0, shard.begin, shard.count));
    }
  }
  if (!stored) return;
  keeps_working_weights_ ? set_module_values() : clear_module_values();
}

void ModuleUnit::each_value(
    const std::function<void(const std::string&, const at::Tensor&)>& act) const {
  std::map<const void*, const Parameter*> trained;
  for (const Bound& each : bound_) {
    trained[each.tensor.unsafeGetTensorImpl()] = each.parameter;
  }
  for (const NamedTensor& each : detail::parameters_of(*made_.module)) {
    const auto found = trained.find(each.tensor.unsafeGetTensorImpl());
    act(prefix_ + each.name,
        found == trained.end() ? each.tensor.detach() : found->second->working_weight());
  }
  for (const NamedTensor& each : detail::buffers_of(*made_.module)) {
    act(prefix_ + each.name, each.tensor);
  }
}

void ModuleUnit::load_values(
    const std::function<at::Tensor(const std::string& name)>& value_of) const {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> all = detail::parameters_of(*made_.module);
  for (NamedTensor& each : detail::buffers_of(*made_.module)) all.push_back(std::move(each));
  std::vector<at::Tensor> values;
  for (const NamedTensor& each : all) {  // first, so that a unit is loaded whole or not at all
    values.push_back(value_of(prefix_ + each.name));
    if (!values.back().defined() || values.back().sizes() == each.tensor.sizes()) continue;
    std::ostringstream text;
    text << quote(prefix_ + each.name, 200) << " is " << each.tensor.sizes()
         << ", and its value to load " << values.back().sizes();
    throw UsageError(text.str(), "load what the same units have given");
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const NamedTensor& each = all[i];
    const at::Tensor& value = values[i];
    if (!value.defined()) continue;
    const bool is_trained =
        std::ranges::any_of(bound_, [&](const Bound& e) { return e.tensor.is_same(each.tensor); });
    if (is_trained) {  // as torch::load does: store() takes it in
      each.tensor.set_data(value.detach().to(type_, /*non_blocking=*/false, /*copy=*/true));
    } else {
      each.tensor.copy_(value);
    }
  }
}

void ModuleUnit::set_module_values() {
  for (Bound& each : bound_) {
    const at::Tensor& value = each.parameter->working_weight();
    if (each.tensor.const_data_ptr() == value.const_data_ptr()) continue;
    each.tensor.set_data(value);
    each.given = value;
  }
}

void ModuleUnit::clear_module_values() {
  if (keeps_working_weights_) return;
  for (Bound& each : bound_) {
    each.given = nothing_like(each.tensor);
    each.tensor.set_data(each.given);
  }
}

Tensors ModuleUnit::arguments(const Tensors& in, const TensorMap& batch) const {
  if (takes_.empty()) return {batch[0]};
  Tensors arguments;
  for (const std::string& name : takes_) {
    const std::size_t position = position_of(in_, name);
    if (position < in_.size()) {
      arguments.push_back(in[position]);
    } else if (const at::Tensor* tensor = batch.find(name)) {
      arguments.push_back(*tensor);
    } else {
      throw UsageError("unit " + quote(name_, 200) + " takes " + quote(name, 200) +
                           ", which no unit before it gives and the batch does not have",
                       "units take what others give, or a tensor of the batch, by its name");
    }
  }
  return arguments;
}

// Errors of LibTorch do not know the unit.
Tensors ModuleUnit::call(const Tensors& arguments) const {
  try {
    return made_.forward(arguments);
  } catch (const UsageError& error) {
    throw UsageError("unit " + quote(name_, 200) + ": " + error.what(), error.hint());
  } catch (const c10::Error& error) {
    if (is_of_device(error)) throw;
    const std::string text = error.what_without_backtrace();
    const std::string first = text.substr(0, text.find('\n'));
    std::ostringstream given;
    given << "it was given ";
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      describe(given << (i == 0 ? "" : ", "), arguments[i]);
    }
    throw UsageError("unit " + quote(name_, 200) + ": " + first,
                     first.find("in-place") == std::string::npos ? given.str() : kNotInPlace);
  }
}

void ModuleUnit::check_outputs(const Tensors& outputs, const Microbatch& microbatch) const {
  if (outputs.size() != gives_.size()) {
    throw UsageError("unit " + quote(name_, 200) + " gives " +
                         plural(std::ssize(outputs), "tensor") + ", not " +
                         std::to_string(gives_.size()),
                     "name what forward() returns in the unit's UnitFlow");
  }
  const std::vector<FlowSpec> specs = batched(gives_, microbatch);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::ScalarType type = specs[i].type.value_or(type_);
    if (outputs[i].defined() && outputs[i].sizes() == at::IntArrayRef(specs[i].shape) &&
        outputs[i].scalar_type() == type) {
      continue;
    }
    std::ostringstream text;
    text << "unit " << quote(name_, 200) << " gives ";
    describe(text, outputs[i]);
    if (outputs.size() > 1) text << " as " << quote(gives_[i].name, 200);
    text << ", not " << c10::toString(type) << " " << at::IntArrayRef(specs[i].shape);
    throw UsageError(text.str(), "say what it gives for one sample as its output_shape");
  }
}

Tensors ModuleUnit::run(const Tensors& in, const Microbatch& microbatch) const {
  const Tensors taken = arguments(in, microbatch.tensors);
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& each : taken)
    versions.push_back(static_cast<std::uint32_t>(each._version()));
  Tensors outputs = call(taken);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (static_cast<std::uint32_t>(taken[i]._version()) == versions[i]) continue;
    throw UsageError("unit " + quote(name_, 200) + " writes to its input", kNotInPlace);
  }
  check_outputs(outputs, microbatch);
  return outputs;
}

void ModuleUnit::for_each_buffer(
    const std::function<void(const std::string&, const at::Tensor&)>& act) const {
  for (const NamedTensor& each : detail::buffers_of(*made_.module)) {
    act(prefix_ + each.name, each.tensor);
  }
}

std::optional<SampleDraws> ModuleUnit::sample_draws(const Microbatch& microbatch) const {
  if (!sample_seed_ || !microbatch.sample_ids.defined()) return std::nullopt;
  return SampleDraws{microbatch.sample_ids, stream_key(*sample_seed_, name_), microbatch.step};
}

Activation ModuleUnit::forward(Activation input, const Saved& saved,
                               std::unique_ptr<UnitState>& state) {
  if (saved.microbatch.step != std::exchange(step_, saved.microbatch.step)) earlier_.clear();
  set_module_values();
  const bool training = saved.mode == Mode::kTrain;
  const int index = saved.microbatch.index;
  const bool again = training && earlier_.contains(index);
  const bool keeps = saved.keeps_state() && (recompute_ == Recompute::kNone || again);
  if (input.tensors.empty()) {  // nothing was sent
    for (const FlowSpec& spec : inputs(saved.microbatch)) {
      input.tensors.push_back(
          at::empty(spec.shape, at::TensorOptions(spec.type.value_or(type_)).device(device_)));
    }
  }
  auto own = std::make_unique<State>();
  for (std::size_t i = 0; i < in_.size(); ++i) {
    own->in.push_back(input.tensors[i].detach());
    const bool is_differentiated =
        in_[i].carries_gradient && saved.wanted == Wanted::kInputGradient;
    if (keeps && is_differentiated) own->in.back().requires_grad_(true);
  }
  input = {};
  if (describe_) made_.module->train(training);  // else it is as its user has set it

  std::unique_ptr<detail::EarlierDraws> draws;
  if (again) {
    const Earlier first = std::move(earlier_.extract(index).mapped());
    draws = std::make_unique<detail::EarlierDraws>(device_, first.generators);
    own->buffers = detail::copies_of_buffers(*made_.module);
    detail::set_buffers(*made_.module, first.buffers);
  } else if (training) {
    if (seed_)
      detail::seed_generators(device_, stream_key(*seed_, draws_of(name_, saved.microbatch)));
    if (saved.keeps_state() && !keeps) {
      earlier_[index] = {detail::generator_states(device_),
                         detail::copies_of_buffers(*made_.module)};
    }
  }
  const at::AutoGradMode with_gradients(keeps);
  const bool is_first = saved.keeps_state() && !keeps;
  const std::int64_t changes = is_first ? detail::changes_of_buffers(*made_.module) : 0;
  const SampleDrawsScope scope(training ? sample_draws(saved.microbatch) : std::nullopt);
  own->outputs = run(own->in, saved.microbatch);
  if (is_first && changes == detail::changes_of_buffers(*made_.module))
    earlier_.at(index).buffers.clear();
  Activation result = result_of(*own, saved);
  if (keeps) state = std::move(own);
  if (!keeps) clear_module_values();
  return result;
}

std::optional<Tensors> ModuleUnit::differentiable(const Tensors& in, const Microbatch& microbatch) {
  set_module_values();
  if (describe_) made_.module->train(false);
  Tensors given = run(in, microbatch);
  if (loss_) return given;
  Tensors sent;
  for (const Origin& origin : origins_) {
    sent.push_back(origin.is_given ? given[origin.position] : in[origin.position]);
  }
  return sent;
}

Activation ModuleUnit::result_of(State& state, const Saved& saved) const {
  Activation result;
  if (!loss_) {
    for (const Origin& origin : origins_) {
      const Tensors& from = origin.is_given ? state.outputs : state.in;
      result.tensors.push_back(from[origin.position].detach());
    }
    return result;
  }
  TensorMap outputs;
  for (std::size_t i = 0; i < gives_.size(); ++i) outputs.add(gives_[i].name, state.outputs[i]);
  LossTerms loss = loss_(outputs, saved.microbatch);
  loss.weigh_equally(saved.microbatch.valid);
  if (!loss.sum.defined() || loss.sum.numel() != 1 || loss.weight.numel() != 1) {
    throw UsageError("the loss behind unit " + quote(name_, 200) + " is not one number",
                     "return the sum over the samples: at::Reduction::Sum");
  }
  state.outputs = {loss.sum.reshape({}).to(at::kDouble)};
  result.loss = {state.outputs[0].detach(), loss.weight.detach().reshape({}).to(at::kDouble)};
  if (saved.wants_predictions) {
    for (const NamedTensor& each : outputs) result.tensors.push_back(each.tensor.detach());
  }
  return result;
}

Tensors ModuleUnit::differentiate(State& state, const Saved& saved, const Tensors& gradients) {
  Tensors outputs, seeds;
  const auto add = [&](const at::Tensor& output, const at::Tensor& seed) {
    if (!output.requires_grad()) return;
    outputs.push_back(output);
    seeds.push_back(seed.defined() ? seed : at::zeros_like(output));
  };
  if (loss_) {
    add(state.outputs[0], at::full_like(state.outputs[0], saved.loss_scale));
  } else {
    for (std::size_t i = 0; i < origins_.size(); ++i) {
      if (!origins_[i].is_given || !out_[i].carries_gradient) continue;
      const bool was_sent = saved.microbatch.samples() > 0 && i < gradients.size();
      add(state.outputs[origins_[i].position], was_sent ? gradients[i] : at::Tensor());
    }
  }
  Tensors inputs;
  for (const Bound& each : bound_) {
    if (each.parameter->is_trained()) inputs.push_back(each.tensor);
  }
  for (const at::Tensor& each : state.in) {
    if (each.requires_grad()) inputs.push_back(each);
  }
  if (outputs.empty() || inputs.empty()) return Tensors(inputs.size());
  try {
    return torch::autograd::grad(outputs, inputs, seeds, std::nullopt, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  } catch (const c10::Error& error) {
    if (is_of_device(error)) throw;
    const std::string text = error.what_without_backtrace();
    throw UsageError("the backward pass of unit " + quote(name_, 200) + ": " +
                     text.substr(0, text.find('\n')));
  }
}

Tensors ModuleUnit::backward_input(UnitState& state, const Saved& saved, Tensors gradients) {
  auto& own = static_cast<State&>(state);
  const Tensors found = differentiate(own, saved, gradients);
  auto next = found.begin();
  for (const Bound& each : bound_) {
    if (!each.parameter->is_trained()) continue;
    if (next->defined()) {
      // Embedding(sparse = true) gives the rows that it has looked up.
      const at::Tensor gradient = next->detach();
      each.parameter->add_gradient(gradient.is_sparse() ? gradient.to_dense() : gradient);
    }
    ++next;
  }
  Tensors result(in_.size());
  for (std::size_t i = 0; i < in_.size(); ++i) {
    if (own.in[i].requires_grad()) result[i] = *next++;
  }
  for (std::size_t i = 0; i < origins_.size() && i < gradients.size(); ++i) {  // passed by
    if (origins_[i].is_given || !out_[i].carries_gradient || !gradients[i].defined()) continue;
    at::Tensor& sum = result[origins_[i].position];
    sum = sum.defined() ? sum + gradients[i] : gradients[i];
  }
  for (std::size_t i = 0; i < in_.size(); ++i) {
    const bool is_wanted = in_[i].carries_gradient && saved.wanted == Wanted::kInputGradient;
    if (is_wanted && !result[i].defined()) result[i] = at::zeros_like(own.in[i]);
  }
  detail::set_buffers(*made_.module, own.buffers);
  own = State();
  clear_module_values();
  return result;
}

std::vector<FlowSpec> ModuleUnit::batched(const std::vector<UnitTensor>& tensors,
                                          const Microbatch& microbatch) const {
  std::vector<FlowSpec> specs;
  for (const UnitTensor& each : tensors) {
    FlowSpec& spec = specs.emplace_back(
        FlowSpec{each.name, each.shape, each.type.value_or(type_), each.carries_gradient});
    spec.shape.insert(spec.shape.begin(), microbatch.samples());
  }
  return specs;
}

std::vector<FlowSpec> ModuleUnit::outputs(const Microbatch& microbatch) const {
  return loss_ ? std::vector<FlowSpec>() : batched(out_, microbatch);
}

std::vector<FlowSpec> ModuleUnit::inputs(const Microbatch& microbatch) const {
  return batched(in_, microbatch);
}

}  // namespace troika
