// A unit of the user's own (named_unit.h) as a Unit of the library: its parameters live in an
// arena, autograd computes the gradients of input and weights together, and hooks come where they
// come for the library's models. Made into a UnitStage it runs in a PipelineExecutor, under every
// schedule, with any stage of ZeRO.
#pragma once

#include <troika/nn/named_unit.h>
#include <troika/nn/stage.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troika {

class ModuleUnit final : public Unit {
 public:
  // `in` and `out` are what crosses the cuts in front of it and behind it (flows_of). `loss` is
  // empty but for the last unit. With Recompute::kUnits, which ZeRO 3 needs, a forward pass
  // keeps its input and the state of torch's random generator alone. Throws UsageError naming a
  // parameter that is not of `type` (fp32 or fp64), dense and in host memory.
  ModuleUnit(const NamedUnit& unit, std::vector<UnitTensor> in, std::vector<UnitTensor> out,
             UnitLoss loss, Recompute recompute, at::ScalarType type);
  ~ModuleUnit() override;

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  void bind(const Arena& arena) override;
  // Copies values that are not the arena's (the first ones, or those of a torch::load) to the
  // arena: all of them where it keeps all, else own shards. bind() comes first. Throws UsageError
  // naming a parameter that was frozen, set to be trained, added or replaced since then.
  void store(const Arena& arena);
  // Names and values of parameters, which must be there, and of buffers; and the way back, which
  // store() ends.
  void each_value(const std::function<void(const std::string&, const at::Tensor&)>& act) const;
  void load_values(const std::function<at::Tensor(const std::string& name)>& value_of) const;
  // Throws UsageError naming the unit if it does not give what it says, writes to what it takes, or
  // LibTorch throws.
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  // Nothing is left over.
  void backward_weight(UnitState&) override {}
  [[nodiscard]] bool can_recompute() const override { return true; }
  [[nodiscard]] bool uses_autograd() const override { return true; }
  [[nodiscard]] bool runs_without_samples() const override { return runs_without_samples_; }
  void for_each_buffer(
      const std::function<void(const std::string&, const at::Tensor&)>& act) const override;
  [[nodiscard]] std::vector<FlowSpec> outputs(const Microbatch& microbatch) const override;
  [[nodiscard]] std::vector<FlowSpec> inputs(const Microbatch& microbatch) const override;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return made_.module; }

 private:
  struct State;
  struct Bound {
    std::string name;
    at::Tensor tensor;               // the module's
    Parameter* parameter = nullptr;  // the arena's
    at::Tensor given = {};           // what the tensor was set to last; keeps that memory its own
  };
  void check_trained() const;
  void set_module_values();
  void clear_module_values();
  // What forward() takes: from the units before, or of the batch.
  [[nodiscard]] Tensors arguments(const Tensors& in, const TensorMap& batch) const;
  [[nodiscard]] Tensors call(const Tensors& arguments) const;
  void check_outputs(const Tensors& outputs, const Microbatch& microbatch) const;
  [[nodiscard]] Tensors run(const Tensors& in, const Microbatch& microbatch) const;
  [[nodiscard]] std::vector<FlowSpec> batched(const std::vector<UnitTensor>& tensors,
                                              const Microbatch& microbatch) const;
  [[nodiscard]] Activation result_of(State& state, const Saved& saved) const;
  [[nodiscard]] Tensors differentiate(State& state, const Saved& saved, const Tensors& gradients);

  std::string name_;
  std::string prefix_;
  std::function<void(ParameterSpec&)> describe_;
  bool runs_without_samples_;
  UnitModule made_;
  std::vector<std::string> takes_;
  std::vector<UnitTensor> gives_, in_, out_;
  // Where each tensor of out_ comes from: a position in gives_, or else in in_, which it passes.
  struct Origin {
    bool is_given;
    std::size_t position;
  };
  std::vector<Origin> origins_;
  UnitLoss loss_;
  Recompute recompute_;
  at::ScalarType type_;
  bool keeps_working_weights_ = true;
  std::vector<Bound> bound_;
  // Of microbatches whose forward pass is to run again: the random generator's state before it.
  std::map<int, at::Tensor> generators_;
  std::int64_t step_ = 0;  // that they belong to
};

}  // namespace troika
