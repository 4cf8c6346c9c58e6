// What forward() of a network in a file returns, as the last unit gives it: in the order and with
// the shapes that the recipe says. Where the module returns its own loss, that is among it.
// Internal to models.
#pragma once

#include <troika/loss/loss.h>
#include <troika/models/row/network_file.h>
#include <troika/nn/named_unit.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

// Const access is thread safe.
class NetworkResult {
 public:
  // Requires options that check_network_loss() has passed.
  NetworkResult(const NetworkFile& options, const LossOptions& loss);

  // Returns the tensors of the last unit: predictions, then the module's own loss and its weight.
  // These two stand there once for each sample.
  [[nodiscard]] const std::vector<ScriptTensor>& gives() const { return gives_; }
  // Makes these of what forward() has returned for `samples` samples. Throws UsageError where there
  // are too few tensors, or where the loss or its weight is not one number.
  [[nodiscard]] Tensors arrange(const Tensors& returned, std::int64_t samples) const;
  // Throws UsageError where tensors are not as gives() says.
  void check(const Tensors& arranged, std::int64_t samples) const;
  // Returns which of gives() is differentiated, or is what a loss of ours takes.
  [[nodiscard]] std::size_t loss_index() const { return is_own_ ? predictions_ : 0; }
  // Returns the loss of what the last unit gives.
  [[nodiscard]] UnitLoss loss() const;

 private:
  [[nodiscard]] at::Tensor number(const at::Tensor& tensor, const ScriptTensor& output,
                                  std::int64_t samples) const;

  std::string path_, target_;
  LossOptions recipe_loss_;
  std::vector<ScriptTensor> gives_;
  std::vector<std::size_t> indices_;  // of each of gives_ in what forward() returns
  bool is_own_ = false;               // the module returns its loss
  bool is_mean_ = true;               // and it is a mean
  std::size_t predictions_ = 0;       // how many of gives_ are those
  std::size_t returned_ = 0;          // the tensors of forward()
};

// Throws UsageError where [model.targets], [model.outputs] and `units` do not go with the loss.
void check_network_loss(const NetworkFile& options, const LossOptions& loss,
                        const Origins& origins);

// Returns what the module returns beside its own loss: [model.outputs], or what the loss takes.
[[nodiscard]] std::vector<ScriptTensor> network_predictions(const NetworkFile& options,
                                                            const LossKind& loss);

}  // namespace troika
