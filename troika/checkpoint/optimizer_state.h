// Internal. What an optimiser of torch::optim keeps of a parameter, as fields with names: tensors
// of the parameter's elements, and a number of steps.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace troika::detail {

// A field of the state of one parameter; one of the two pointers is set. A tensor may be undefined.
struct OptimizerField {
  std::string_view name;
  at::Tensor* tensor = nullptr;
  std::int64_t* number = nullptr;
};

class OptimizerState {
 public:
  // Throws UsageError naming an optimiser whose state is not known: SGD, Adam, AdamW, RMSprop and
  // Adagrad, and what derives from them, are. `optimizer` must outlive this.
  explicit OptimizerState(torch::optim::Optimizer& optimizer);

  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return optimizer_; }
  // Returns "AdamW".
  [[nodiscard]] std::string_view name() const;
  // Returns the names of all fields that a parameter may have.
  [[nodiscard]] std::vector<std::string_view> field_names() const;
  // Returns the fields of a parameter's state; none where it has no state yet.
  [[nodiscard]] std::vector<OptimizerField> fields(const at::Tensor& parameter) const;
  // Gives a parameter a fresh state in place of what it has, and returns its fields.
  [[nodiscard]] std::vector<OptimizerField> renew(const at::Tensor& parameter) const;

  struct Kind;

 private:
  torch::optim::Optimizer& optimizer_;
  const Kind* kind_;
};

}  // namespace troika::detail
