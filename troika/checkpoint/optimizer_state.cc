#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/checkpoint/optimizer_state.h>

#include <array>

namespace troika::detail {

using Fields = std::vector<OptimizerField>;

struct OptimizerState::Kind {
  std::string_view name;
  bool (*is)(const torch::optim::Optimizer&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make)();
  Fields (*fields)(torch::optim::OptimizerParamState&);
};

namespace {

Fields fields_of(torch::optim::SGDParamState& state) {
  return {{.name = "momentum_buffer", .tensor = &state.momentum_buffer()}};
}

template <class State>
Fields fields_of(State& state) requires requires {
  state.max_exp_avg_sq();
}
{  // Adam and AdamW
  return {{.name = "exp_avg", .tensor = &state.exp_avg()},
          {.name = "exp_avg_sq", .tensor = &state.exp_avg_sq()},
          {.name = "max_exp_avg_sq", .tensor = &state.max_exp_avg_sq()},
          {.name = "step", .number = &state.step()}};
}

Fields fields_of(torch::optim::RMSpropParamState& state) {
  return {{.name = "square_avg", .tensor = &state.square_avg()},
          {.name = "momentum_buffer", .tensor = &state.momentum_buffer()},
          {.name = "grad_avg", .tensor = &state.grad_avg()},
          {.name = "step", .number = &state.step()}};
}

Fields fields_of(torch::optim::AdagradParamState& state) {
  return {{.name = "sum", .tensor = &state.sum()}, {.name = "step", .number = &state.step()}};
}

template <class Optimizer, class State>
constexpr OptimizerState::Kind kind(std::string_view name) {
  return {name,
          [](const torch::optim::Optimizer& optimizer) {
            return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
          },
          []() -> std::unique_ptr<torch::optim::OptimizerParamState> {
            return std::make_unique<State>();
          },
          [](torch::optim::OptimizerParamState& state) {
            return fields_of(static_cast<State&>(state));
          }};
}

const OptimizerState::Kind& kind_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  static const std::array kKinds = {
      kind<SGD, SGDParamState>("SGD"), kind<Adam, AdamParamState>("Adam"),
      kind<AdamW, AdamWParamState>("AdamW"), kind<RMSprop, RMSpropParamState>("RMSprop"),
      kind<Adagrad, AdagradParamState>("Adagrad")};
  for (const OptimizerState::Kind& each : kKinds) {
    if (each.is(optimizer)) return each;
  }
  throw UsageError("a checkpoint cannot hold the state of this optimiser",
                   "it holds that of torch::optim's SGD, Adam, AdamW, RMSprop and Adagrad, and of "
                   "classes that derive from them");
}

}  // namespace

OptimizerState::OptimizerState(torch::optim::Optimizer& optimizer)
    : optimizer_(optimizer), kind_(&kind_of(optimizer)) {}

std::string_view OptimizerState::name() const {
  return kind_->name;
}

std::vector<std::string_view> OptimizerState::field_names() const {
  const auto state = kind_->make();
  std::vector<std::string_view> names;
  for (const OptimizerField& field : kind_->fields(*state)) names.push_back(field.name);
  return names;
}

Fields OptimizerState::fields(const at::Tensor& parameter) const {
  const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return {};
  return kind_->fields(*found->second);
}

Fields OptimizerState::renew(const at::Tensor& parameter) const {
  auto& state = optimizer_.state()[parameter.unsafeGetTensorImpl()];
  state = kind_->make();
  return kind_->fields(*state);
}

}  // namespace troika::detail
