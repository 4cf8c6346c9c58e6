// Extends LibTorch: for programs that include torch/torch.h. An optimiser of torch::optim over a
// module that DataParallel has cut (options.zero_stage 1 or 2): each rank updates its own shards of
// the parameters, and values are whole again when step() returns. What PyTorch calls
// ZeroRedundancyOptimizer. At stage 0 it is the optimiser itself.
//
//   troika::DataParallel model(net, session, {.zero_stage = 1});
//   troika::ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(
//       model, torch::optim::AdamWOptions(1e-3));
#pragma once

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <troika/parallel/data_parallel/data_parallel.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace troika {

// Updates this rank's shards with `Optimizer`. Shards are flat, so it must work element by element,
// as all of torch::optim do but LBFGS.
template <class Optimizer>
class ZeroRedundancyOptimizer : public Optimizer, public detail::StepSkipper {
  static_assert(!std::is_same_v<Optimizer, torch::optim::LBFGS>,
                "LBFGS needs whole parameters: use zero_stage = 0");

 public:
  // Updates all parameters that are trained. Make one optimiser a model.
  template <class Options>
  ZeroRedundancyOptimizer(Replica& model, Options defaults)
      : Optimizer(model.shards(), std::move(defaults)), access_(model.update_access()) {}
  // Updates groups of the module's parameters, each with separate options.
  template <class Options>
  ZeroRedundancyOptimizer(Replica& model,
                          const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          Options defaults)
      : Optimizer(shards_of(model, groups), std::move(defaults)), access_(model.update_access()) {}

  // Collective: takes one step. Throws DeadlineError, PeerError; at stages 1 and 2 UsageError if
  // the model is gone.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    access_.begin_step();
    at::Tensor loss = Optimizer::step(std::move(closure));
    access_.end_step();
    return loss;
  }
  // Clears the gradients. It is not virtual in torch::optim. A call through an Optimizer& leaves
  // the gradients that no_sync() has added up on the module's parameters, and an average that waits
  // for step() goes on waiting.
  void zero_grad(bool set_to_none = true) {
    Optimizer::zero_grad(set_to_none);
    access_.zero_grad();
  }
  // Collective: scales gradients so that their norm over the model is at most `max_norm`; returns
  // the norm. Use it in place of torch::nn::utils::clip_grad_norm_(net->parameters(), ...), which
  // finds no gradients at stages 1 and 2. Stages add the squares in different orders, so that their
  // bits may differ. A norm that is not finite leaves gradients as they are.
  double clip_grad_norm(double max_norm) { return access_.clip_grad_norm(max_norm); }

  // Save and load the state of this rank's shards, for torch::save and torch::load. load() throws
  // UsageError, and changes nothing, if the file is that of another rank, of another number of
  // ranks, or of parameters that are cut otherwise.
  void save(torch::serialize::OutputArchive& archive) const override {
    Optimizer::save(archive);
    archive.write(kShardsKey, c10::IValue(access_.describe_shards()));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue saved;
    const bool found = archive.try_read(kShardsKey, saved) && saved.isString();
    access_.check_saved_shards(found ? &saved.toStringRef() : nullptr);
    Optimizer::load(archive);
  }

 private:
  void skip_step() override { access_.skip_step(); }

  static constexpr const char* kShardsKey = "troika_shards";
  static std::vector<torch::optim::OptimizerParamGroup> shards_of(
      Replica& model, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
    std::vector<torch::optim::OptimizerParamGroup> cut = groups;
    for (auto& group : cut) group.params() = model.shards_of(group.params());
    return cut;
  }

  detail::UpdateAccess access_;
};

}  // namespace troika
