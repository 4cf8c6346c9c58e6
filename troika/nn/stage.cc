#include <c10/core/InferenceMode.h>
#include <troika/nn/stage.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace troika {

template <>
std::span<const std::string_view> names_of<ActivationCheckpoint>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"none", "selective", "full"});
  return kNames;
}

namespace {

// Units that compute their gradients themselves run without what autograd keeps of each tensor.
class UnitMode {
 public:
  explicit UnitMode(const Unit& unit) {
    if (!unit.uses_autograd()) inference_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> inference_;
};

}  // namespace

void Unit::adapt(LoraTargets&) {}

void Unit::for_each_buffer(
    const std::function<void(const std::string&, const at::Tensor&)>&) const {}

void UnitHooks::begin_pass(int, int) {}
void UnitHooks::unshard(int, Direction) {}
void UnitHooks::reshard(int) {}
void UnitHooks::prepare_gradients(int) {}
void UnitHooks::gradients_ready(int) {}

UnitStage::UnitStage(std::vector<std::unique_ptr<Unit>> units, int first_unit, Recompute recompute,
                     int first_trained)
    : units_(std::move(units)),
      first_unit_(first_unit),
      recompute_(recompute),
      first_trained_(first_trained) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (ParameterSpec& spec : units_[i]->specs()) {
      spec.unit = number_of(i);
      specs_.push_back(std::move(spec));
    }
  }
}

void UnitStage::bind(const Arena& arena) {
  for (const auto& unit : units_) unit->bind(arena);
}

void UnitStage::for_each_buffer(
    const std::function<void(const std::string&, const at::Tensor&)>& act) const {
  for (const auto& unit : units_) unit->for_each_buffer(act);
}

Wanted UnitStage::wanted_of(std::size_t index) const {
  const auto place = static_cast<int>(index);
  if (place < first_trained_) return Wanted::kNothing;
  return place == first_trained_ ? Wanted::kWeightGradients : Wanted::kInputGradient;
}

std::size_t UnitStage::forward_only() const {
  return static_cast<std::size_t>(
      std::clamp<int>(first_trained_, 0, static_cast<int>(units_.size())));
}

bool UnitStage::recomputes(std::size_t index) const {
  return recompute_ == Recompute::kUnits && units_[index]->can_recompute() &&
         wanted_of(index) != Wanted::kNothing;
}

Activation UnitStage::forward(Activation input, Saved& saved, UnitHooks& hooks) {
  saved.units.resize(units_.size());
  saved.inputs.resize(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const bool at_end = i + 1 == units_.size();
    hooks.unshard(number_of(i), at_end ? Direction::kOut : Direction::kForward);
    saved.wanted = wanted_of(i);
    const bool keeps = saved.keeps_state();
    if (keeps && units_[i]->forward_adds_gradients()) hooks.prepare_gradients(number_of(i));
    if (keeps && recomputes(i)) saved.inputs[i] = input.tensors;
    if (runs(i, saved.microbatch)) {
      const UnitMode mode(*units_[i]);
      input = units_[i]->forward(std::move(input), saved, saved.units[i]);
    }
    if (recomputes(i) || !keeps) saved.units[i].reset();
    hooks.reshard(number_of(i));
  }
  return input;
}

std::optional<Tensors> Unit::differentiable(const Tensors&, const Microbatch&) {
  return std::nullopt;
}

std::optional<Tensors> UnitStage::differentiable(const Microbatch& microbatch) {
  std::optional<Tensors> tensors = Tensors();
  for (const auto& unit : units_) {
    if (tensors) tensors = unit->differentiable(*tensors, microbatch);
  }
  return tensors;
}

Tensors UnitStage::backward_input_of(std::size_t index, Saved& saved, Tensors gradients,
                                     UnitHooks& hooks) {
  saved.wanted = wanted_of(index);
  hooks.unshard(number_of(index), index == forward_only() ? Direction::kOut : Direction::kBackward);
  hooks.prepare_gradients(number_of(index));
  if (runs(index, saved.microbatch)) {
    const UnitMode mode(*units_[index]);
    if (recomputes(index)) {
      static_cast<void>(
          units_[index]->forward({std::move(saved.inputs[index])}, saved, saved.units[index]));
    }
    gradients = units_[index]->backward_input(*saved.units[index], saved, std::move(gradients));
  }
  hooks.reshard(number_of(index));
  return gradients;
}

void UnitStage::backward_weight_of(std::size_t index, Saved& saved, UnitHooks& hooks) {
  hooks.prepare_gradients(number_of(index));
  if (runs(index, saved.microbatch)) {
    const UnitMode mode(*units_[index]);
    units_[index]->backward_weight(*saved.units[index]);
  }
  saved.units[index].reset();
  hooks.gradients_ready(number_of(index));
}

Tensors UnitStage::backward(Saved& saved, Tensors gradients, UnitHooks& hooks) {
  for (std::size_t i = units_.size(); i-- > forward_only();) {
    gradients = backward_input_of(i, saved, std::move(gradients), hooks);
    backward_weight_of(i, saved, hooks);
  }
  return gradients;
}

Tensors UnitStage::backward_input(Saved& saved, Tensors gradients, UnitHooks& hooks) {
  for (std::size_t i = units_.size(); i-- > forward_only();) {
    gradients = backward_input_of(i, saved, std::move(gradients), hooks);
  }
  return gradients;
}

void UnitStage::backward_weight(Saved& saved, UnitHooks& hooks) {
  for (std::size_t i = units_.size(); i-- > forward_only();) backward_weight_of(i, saved, hooks);
}

}  // namespace troika
