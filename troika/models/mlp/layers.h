// The units of a multi-layer perceptron.
#pragma once

#include <troika/loss/loss.h>
#include <troika/models/mlp/options.h>
#include <troika/nn/linear.h>
#include <troika/nn/stage.h>

#include <cmath>

namespace troika {

// Returns how the weight and the bias of a layer with `in` inputs start: as in torch::nn::Linear.
[[nodiscard]] inline Initializer mlp_start(std::int64_t in) {
  return Initializer::uniform(1 / std::sqrt(static_cast<double>(in)));
}

class MlpHiddenLayer final : public Unit {
 public:
  MlpHiddenLayer(std::int64_t index, std::int64_t in, std::int64_t out,
                 ActivationFunction activation);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void adapt(LoraTargets& targets) override { linear_.adapt(targets); }
  void bind(const Arena& arena) override { linear_.bind(arena); }
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  void backward_weight(UnitState& state) override;
  std::optional<Tensors> differentiable(const Tensors& in, const Microbatch& microbatch) override;
  [[nodiscard]] bool can_recompute() const override { return true; }
  [[nodiscard]] std::vector<FlowSpec> inputs(const Microbatch& microbatch) const override {
    return {{"hidden", {microbatch.samples(), in_}}};
  }
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch& microbatch) const override {
    return {{"hidden", {microbatch.samples(), out_}}};
  }

 private:
  bool first_;  // the gradient of the features is not needed
  std::int64_t in_, out_;
  ActivationFunction activation_;
  Linear linear_;
};

class MlpLossLayer final : public Unit {
 public:
  MlpLossLayer(std::int64_t index, std::int64_t in, std::int64_t out,
               std::shared_ptr<const Loss> loss);

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void adapt(LoraTargets& targets) override { linear_.adapt(targets); }
  void bind(const Arena& arena) override { linear_.bind(arena); }
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  void backward_weight(UnitState& state) override;
  std::optional<Tensors> differentiable(const Tensors& in, const Microbatch& microbatch) override;
  [[nodiscard]] std::vector<FlowSpec> inputs(const Microbatch& microbatch) const override {
    return {{"hidden", {microbatch.samples(), in_}}};
  }
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch&) const override { return {}; }

 private:
  bool first_;
  std::int64_t in_;
  std::shared_ptr<const Loss> loss_;
  Linear linear_;
};

}  // namespace troika
