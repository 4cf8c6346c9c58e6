// A unit of the user's own (named_unit.h) as a Unit of the library: its parameters live in an
// arena, autograd computes the gradients of input and weights together, and hooks come where they
// come for the library's models. Made into a UnitStage it runs in a PipelineExecutor, under every
// schedule, with any stage of ZeRO.
#pragma once

#include <troika/nn/named_unit.h>
#include <troika/nn/sample_draws.h>
#include <troika/nn/stage.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troika {

class ModuleUnit final : public Unit {
 public:
  // Makes the unit's module. `in` and `out` are the tensors that cross the cuts in front of it and
  // behind it (flows_of). `loss` is empty but for the last unit. With Recompute::kUnits, which ZeRO
  // 3 needs, a forward pass keeps only its input and the state of torch's random generator. Throws
  // UsageError naming a parameter that is not of `type` (fp32 or fp64), dense and in host memory.
  ModuleUnit(const NamedUnit& unit, std::vector<UnitTensor> in, std::vector<UnitTensor> out,
             UnitLoss loss, Recompute recompute, at::ScalarType type);
  ~ModuleUnit() override;

  [[nodiscard]] std::vector<ParameterSpec> specs() const override;
  // Puts pairs beside linear layers of a module that is a LoraHost.
  void adapt(LoraTargets& targets) override;
  void bind(const Arena& arena) override;
  // Copies values that are not yet the arena's (the initial ones, or those of a torch::load) to the
  // arena: all of them where it keeps all, else own shards. Call bind() first. Throws UsageError
  // naming a parameter that was frozen, set to be trained, added or replaced since then.
  void store(const Arena& arena);
  // Visit the names and values of parameters, which must be there, and of buffers; and load them
  // again. Call store() after load_values().
  void each_value(const std::function<void(const std::string&, const at::Tensor&)>& act) const;
  void load_values(const std::function<at::Tensor(const std::string& name)>& value_of) const;
  // Throws UsageError naming the unit if its outputs are not those it declares, if it writes to its
  // inputs, or if LibTorch throws.
  Activation forward(Activation input, const Saved& saved,
                     std::unique_ptr<UnitState>& state) override;
  Tensors backward_input(UnitState& state, const Saved& saved, Tensors gradients) override;
  // Does nothing: backward_input() leaves no weight gradients over.
  void backward_weight(UnitState&) override {}
  [[nodiscard]] bool can_recompute() const override { return true; }
  [[nodiscard]] bool uses_autograd() const override { return true; }
  std::optional<Tensors> differentiable(const Tensors& in, const Microbatch& microbatch) override;
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
  // Takes over parameters of the module that it does not have yet.
  void find_parameters();
  void check_trained() const;
  void set_module_values();
  void clear_module_values();
  // Returns the arguments of forward(), from the units before or from the batch.
  [[nodiscard]] Tensors arguments(const Tensors& in, const TensorMap& batch) const;
  [[nodiscard]] Tensors call(const Tensors& arguments) const;
  void check_outputs(const Tensors& outputs, const Microbatch& microbatch) const;
  [[nodiscard]] Tensors run(const Tensors& in, const Microbatch& microbatch) const;
  [[nodiscard]] std::optional<SampleDraws> sample_draws(const Microbatch& microbatch) const;
  [[nodiscard]] std::vector<FlowSpec> batched(const std::vector<UnitTensor>& tensors,
                                              const Microbatch& microbatch) const;
  [[nodiscard]] Activation result_of(State& state, const Saved& saved) const;
  [[nodiscard]] Tensors differentiate(State& state, const Saved& saved, const Tensors& gradients);

  std::string name_;
  std::string prefix_;
  std::function<void(ParameterSpec&)> describe_;
  bool runs_without_samples_;
  std::optional<std::uint64_t> seed_, sample_seed_;
  UnitModule made_;
  std::vector<std::string> takes_;
  std::vector<UnitTensor> gives_, in_, out_;
  // The source of each tensor of out_: a position in gives_, or else in in_, which it passes on.
  struct Origin {
    bool is_given;
    std::size_t position;
  };
  std::vector<Origin> origins_;
  UnitLoss loss_;
  Recompute recompute_;
  at::ScalarType type_;
  at::Device device_ = at::kCPU;
  bool keeps_working_weights_ = true;
  std::vector<Bound> bound_;
  std::map<std::string, ParameterSpec> pairs_;  // by name: of adapters
  // The state that each forward pass to be recomputed began with: the random generators, and the
  // buffers that the pass has changed.
  struct Earlier {
    std::vector<at::Tensor> generators, buffers;
  };
  std::map<int, Earlier> earlier_;  // by microbatch
  std::int64_t step_ = 0;           // that they belong to
};

}  // namespace troika
