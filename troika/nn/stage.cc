#include <troika/nn/stage.h>

#include <utility>

namespace troika {

UnitStage::UnitStage(std::vector<std::unique_ptr<Unit>> units, int first_unit)
    : units_(std::move(units)), first_unit_(first_unit) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (ParameterSpec& spec : units_[i]->specs()) {
      spec.unit = first_unit_ + static_cast<int>(i);
      specs_.push_back(std::move(spec));
    }
  }
}

void UnitStage::bind(const Arena& arena) {
  for (const auto& unit : units_) unit->bind(arena);
}

Activation UnitStage::forward(Activation input, Saved& saved) {
  saved.units.resize(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    input = units_[i]->forward(std::move(input), saved, saved.units[i]);
  }
  return input;
}

at::Tensor UnitStage::backward(Saved& saved, at::Tensor gradient, GradientSink& sink) {
  for (std::size_t i = units_.size(); i-- > 0;) {
    gradient = units_[i]->backward_input(*saved.units[i], saved, std::move(gradient));
    units_[i]->backward_weight(*saved.units[i]);
    saved.units[i].reset();
    sink.unit_ready(first_unit_ + static_cast<int>(i));
  }
  return gradient;
}

at::Tensor UnitStage::backward_input(Saved& saved, at::Tensor gradient) {
  for (std::size_t i = units_.size(); i-- > 0;) {
    gradient = units_[i]->backward_input(*saved.units[i], saved, std::move(gradient));
  }
  return gradient;
}

void UnitStage::backward_weight(Saved& saved, GradientSink& sink) {
  for (std::size_t i = units_.size(); i-- > 0;) {
    units_[i]->backward_weight(*saved.units[i]);
    saved.units[i].reset();
    sink.unit_ready(first_unit_ + static_cast<int>(i));
  }
}

}  // namespace troika
