#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/module_unit.h>

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_set>
#include <utility>

namespace troika {

struct ModuleUnit::State final : UnitState {
  at::Tensor input, output;
  std::vector<at::Tensor> buffers;  // as they were before a forward pass ran again
};

namespace {

constexpr const char* kNotInPlace =
    "its first operation must not be in place (ReLU with inplace = true)";

at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// Draws as at an earlier time while this lives.
class EarlierDraws {
 public:
  explicit EarlierDraws(const at::Tensor& state) : before_(generator_state()) {
    set_generator_state(state);
  }
  ~EarlierDraws() { set_generator_state(before_); }
  EarlierDraws(const EarlierDraws&) = delete;
  EarlierDraws& operator=(const EarlierDraws&) = delete;

 private:
  at::Tensor before_;
};

std::string validate_parameter(const std::string& name, const at::Tensor& tensor,
                               at::ScalarType type) {
  const std::string title = "parameter " + quote(name, 200);
  if (!tensor.is_cpu()) return title + " is not in host memory";
  if (tensor.layout() != at::kStrided) return title + " is not a dense tensor";
  if (tensor.scalar_type() == type) return {};
  return title + " is of dtype " + c10::toString(tensor.scalar_type()) + ", in a model of " +
         c10::toString(type);
}

// In place of values that are elsewhere: of the same shape, without memory, and seen where they are
// used all the same.
at::Tensor nothing_like(const at::Tensor& tensor) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(),
                  at::TensorOptions(tensor.scalar_type()))
      .expand(tensor.sizes());
}

std::vector<std::int64_t> batched(const Microbatch& microbatch, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), microbatch.samples());
  return shape;
}

std::vector<at::Tensor> copies_of_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const NamedTensor& each : detail::buffers_of(module)) copies.push_back(each.tensor.clone());
  return copies;
}

void set_buffers(const torch::nn::Module& module, const std::vector<at::Tensor>& copies) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor> buffers = detail::buffers_of(module);
  for (std::size_t i = 0; i < copies.size(); ++i) buffers[i].tensor.copy_(copies[i]);
}

// As Module::to(at::kDouble), which makes floating-point numbers of counts as well.
void widen(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> all = detail::parameters_of(module);
  for (NamedTensor& each : detail::buffers_of(module)) all.push_back(std::move(each));
  for (const NamedTensor& each : all) {
    if (each.tensor.is_floating_point()) each.tensor.set_data(each.tensor.to(at::kDouble));
  }
}

}  // namespace

ModuleUnit::ModuleUnit(const NamedUnit& unit, std::vector<std::int64_t> input_shape, UnitLoss loss,
                       Recompute recompute, at::ScalarType type)
    : name_(unit.name),
      prefix_(unit.prefix.value_or(unit.name + ".")),
      describe_(unit.describe),
      runs_without_samples_(unit.runs_without_samples),
      made_(unit.make()),
      input_shape_(std::move(input_shape)),
      output_shape_(unit.output_shape),
      loss_(std::move(loss)),
      recompute_(recompute),
      type_(type) {
  if (made_.module == nullptr) throw UsageError("unit " + quote(name_, 200) + " makes no module");
  // Narrower types leave buffers, and norms, in fp32.
  if (describe_ && type_ == at::kDouble) widen(*made_.module);
  for (NamedTensor& each : detail::trained_of(*made_.module)) {
    Bound bound{prefix_ + each.name, std::move(each.tensor)};
    const at::ScalarType type = describe_ ? bound.tensor.scalar_type() : type_;
    if (const std::string problem = validate_parameter(bound.name, bound.tensor, type);
        !problem.empty()) {
      throw UsageError(problem,
                       "units take dense fp32 or fp64 parameters in host memory, all of "
                       "the type that the options name");
    }
    bound_.push_back(std::move(bound));
  }
}

ModuleUnit::~ModuleUnit() = default;

std::vector<ParameterSpec> ModuleUnit::specs() const {
  std::vector<ParameterSpec> specs;
  for (const Bound& each : bound_) {
    ParameterSpec& spec = specs.emplace_back();
    spec.name = each.name;
    spec.shape = each.tensor.sizes().vec();
    if (describe_) describe_(spec);
  }
  return specs;
}

void ModuleUnit::bind(const Arena& arena) {
  keeps_working_weights_ = arena.keeps_working_weights();
  for (Bound& each : bound_) each.parameter = &arena.parameter(each.name);
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

// Errors of LibTorch do not know the unit.
at::Tensor ModuleUnit::call(const at::Tensor& input) const {
  try {
    return made_.forward(input);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const std::string first = text.substr(0, text.find('\n'));
    std::ostringstream given;
    given << "it was given " << c10::toString(input.scalar_type()) << " " << input.sizes();
    throw UsageError("unit " + quote(name_, 200) + ": " + first,
                     first.find("in-place") == std::string::npos ? given.str() : kNotInPlace);
  }
}

at::Tensor ModuleUnit::run(const at::Tensor& input, const Saved& saved) {
  const std::int64_t version = input._version();
  const at::Tensor output = call(input);
  if (input._version() != version) {
    throw UsageError("unit " + quote(name_, 200) + " writes to its input", kNotInPlace);
  }
  const auto shape = batched(saved.microbatch, output_shape_);
  if (!output.defined() || output.sizes() != at::IntArrayRef(shape) ||
      output.scalar_type() != type_) {
    std::ostringstream text;
    text << "unit " << quote(name_, 200) << " gives ";
    output.defined() ? text << c10::toString(output.scalar_type()) << " " << output.sizes()
                     : text << "nothing";
    text << ", not " << c10::toString(type_) << " " << at::IntArrayRef(shape);
    throw UsageError(text.str(), "say what it gives for one sample as its output_shape");
  }
  return loss_ ? loss_(output, saved.microbatch.targets) : output;
}

void ModuleUnit::for_each_buffer(
    const std::function<void(const std::string&, const at::Tensor&)>& act) const {
  for (const NamedTensor& each : detail::buffers_of(*made_.module)) {
    act(prefix_ + each.name, each.tensor);
  }
}

Activation ModuleUnit::forward(Activation input, const Saved& saved,
                               std::unique_ptr<UnitState>& state) {
  if (saved.microbatch.step != std::exchange(step_, saved.microbatch.step)) generators_.clear();
  set_module_values();
  const bool training = saved.mode == Mode::kTrain;
  const int index = saved.microbatch.index;
  const bool again = training && generators_.contains(index);
  const bool keeps = training && (recompute_ == Recompute::kNone || again);
  if (saved.microbatch.samples() == 0 && !input.hidden.defined() && !input_shape_.empty()) {
    input.hidden = at::empty(input_shape(saved.microbatch), type_);  // nothing was sent
  }
  const bool is_first = !input.hidden.defined();
  auto own = std::make_unique<State>();
  own->input = is_first ? saved.microbatch.inputs : input.hidden.detach();
  if (describe_) made_.module->train(training);  // else it is as its user has set it
  if (keeps && !is_first) own->input.requires_grad_(true);

  std::unique_ptr<EarlierDraws> draws;
  if (again) {
    draws = std::make_unique<EarlierDraws>(generators_.at(index));
    generators_.erase(index);
    own->buffers = copies_of_buffers(*made_.module);
  } else if (training && !keeps) {
    generators_[index] = generator_state();
  }
  const at::AutoGradMode with_gradients(keeps);
  own->output = run(own->input, saved);

  Activation result;
  if (loss_) {
    result.loss_sum = own->output.item<double>();
    result.count = saved.microbatch.valid;
  } else {
    result.hidden = own->output.detach();
  }
  if (keeps) state = std::move(own);
  if (!keeps) clear_module_values();
  return result;
}

at::Tensor ModuleUnit::backward_input(UnitState& state, const Saved& saved, at::Tensor gradient) {
  auto& own = static_cast<State&>(state);
  if (saved.microbatch.samples() == 0 && !loss_) gradient = at::zeros_like(own.output);
  const bool wants_input = own.input.requires_grad();
  at::Tensor result;
  if (own.output.requires_grad()) {
    std::vector<at::Tensor> inputs;
    for (const Bound& each : bound_) inputs.push_back(each.tensor);
    if (wants_input) inputs.push_back(own.input);
    if (!gradient.defined()) gradient = at::full_like(own.output, saved.loss_scale);
    const auto gradients = torch::autograd::grad({own.output}, inputs, {gradient}, std::nullopt,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < bound_.size(); ++i) {
      if (gradients[i].defined()) bound_[i].parameter->add_gradient(gradients[i].detach());
    }
    if (wants_input) result = gradients.back();
  }
  if (wants_input && !result.defined()) result = at::zeros_like(own.input);
  set_buffers(*made_.module, own.buffers);
  own = State();
  clear_module_values();
  return result;
}

std::vector<std::int64_t> ModuleUnit::output_shape(const Microbatch& microbatch) const {
  return loss_ ? std::vector<std::int64_t>() : batched(microbatch, output_shape_);
}

std::vector<std::int64_t> ModuleUnit::input_shape(const Microbatch& microbatch) const {
  return batched(microbatch, input_shape_);
}

}  // namespace troika
