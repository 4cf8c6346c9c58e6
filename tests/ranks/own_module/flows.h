// Units that take and give several tensors: a skip connection over cuts, a tensor of the batch that
// a late unit takes, whole numbers that pass without a gradient, and a loss with weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ranks/own_module/own_pipeline.h"

namespace troika::test {

struct DownImpl : torch::nn::Module {
  DownImpl() {
    torch::manual_seed(31);
    inner = register_module("inner", torch::nn::Linear(6, 5));
    to(torch::kDouble);
  }
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    return {torch::tanh(inner(x)), x * 2 + inner(x).sum(1, true),
            x.select(1, 0).gt(0).to(at::kLong)};
  }
  torch::nn::Linear inner{nullptr};
};
TORCH_MODULE(Down);

struct UpImpl : torch::nn::Module {
  UpImpl() {
    torch::manual_seed(32);
    outer = register_module("outer", torch::nn::Linear(5, 6));
    table = register_module("table", torch::nn::Embedding(2, 6));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& skip,
                        const torch::Tensor& kinds, const torch::Tensor& times) {
    return outer(hidden) * skip + table(kinds) * times.unsqueeze(1);
  }
  torch::nn::Linear outer{nullptr};
  torch::nn::Embedding table{nullptr};
};
TORCH_MODULE(Up);

inline std::vector<NamedUnit> skipping_net() {
  return {unit(
              "down", [] { return Down(); },
              UnitFlow{{"x"}, {{"hidden", {5}}, {"skip", {6}}, {"kinds", {}, at::kLong}}}),
          unit(
              "first", [] { return dense(5, 5, 41); }, UnitFlow{{"hidden"}, {{"hidden", {5}}}}),
          unit("second", [] { return dense(5, 5, 42); }, {5}),  // takes what the unit before gives
          unit(
              "up", [] { return Up(); },
              UnitFlow{{"hidden", "skip", "kinds", "times"}, {{"wide", {6}}}}),
          unit(
              "third", [] { return dense(6, 4, 43); }, UnitFlow{{"wide"}, {{"hidden", {4}}}}),
          unit(
              "last", [] { return dense(4, 3, 44); }, UnitFlow{{"hidden"}, {{"out", {3}}}})};
}

inline LossTerms weighted(const TensorMap& outputs, const TensorMap& batch) {
  const torch::Tensor errors = (outputs.at("out") - batch.at("y")).square().sum(1);
  return {(errors * batch.at("weights")).sum(), batch.at("weights").sum()};
}

inline TensorMap batch_of(std::int64_t samples) {
  torch::manual_seed(7);
  return {{"x", torch::randn({samples, 6}, torch::kDouble)},
          {"times", torch::rand({samples}, torch::kDouble)},
          {"y", torch::randn({samples, 3}, torch::kDouble)},
          {"weights", torch::rand({samples}, torch::kDouble)}};
}

inline TensorMap part_of(const TensorMap& batch, const ModulePipeline& model) {
  const std::int64_t count = batch[0].size(0), ranks = model.data_ranks(), rank = model.data_rank();
  const std::int64_t begin = count * rank / ranks;
  TensorMap slice;
  for (const NamedTensor& each : batch) {
    slice.add(each.name, each.tensor.narrow(0, begin, count * (rank + 1) / ranks - begin));
  }
  return slice;
}

// The same in one process, written out.
struct WrittenOut {
  Down down;
  torch::nn::Sequential first = dense(5, 5, 41), second = dense(5, 5, 42), third = dense(6, 4, 43),
                        last = dense(4, 3, 44);
  Up up;

  torch::Tensor loss(const TensorMap& batch) {
    const auto [hidden, skip, kinds] = down->forward(batch.at("x"));
    const torch::Tensor wide =
        up->forward(second->forward(first->forward(hidden)), skip, kinds, batch.at("times"));
    TensorMap outputs{{"out", last->forward(third->forward(wide))}};
    const LossTerms terms = weighted(outputs, batch);
    return terms.sum / terms.weight;
  }
  std::map<std::string, torch::Tensor> parameters() {
    std::map<std::string, torch::Tensor> all;
    const auto add = [&](const std::string& name, const torch::nn::Module& module) {
      for (const auto& item : module.named_parameters())
        all[name + "." + item.key()] = item.value();
    };
    add("down", *down);
    add("first", *first);
    add("second", *second);
    add("up", *up);
    add("third", *third);
    add("last", *last);
    return all;
  }
};

inline void expect_gradients_of_one_process(const PipelineGroups& groups,
                                            const ModulePipelineOptions& options) {
  ModulePipeline model(skipping_net(), weighted, groups, options);
  WrittenOut alone;
  const TensorMap batch = batch_of(11);
  const torch::Tensor loss = alone.loss(batch);
  loss.backward();
  const std::string what = options.schedule + ", stage " + std::to_string(options.zero_stage);
  const TensorMap own = part_of(batch, model);
  const double bound = options.device.is_cpu() ? 1e-12 : 1e-11;
  EXPECT_NEAR(model.evaluate(own), loss.item<double>(), 1e-12) << what;
  EXPECT_NEAR(model.train(own), loss.item<double>(), 1e-12) << what;
  auto parameters = alone.parameters();
  for (const ParameterShard& shard : model.shards()) {
    const torch::Tensor wanted =
        parameters.at(shard.name).grad().reshape({-1}).narrow(0, shard.begin, shard.tensor.numel());
    EXPECT_LE(largest(shard.tensor.grad().cpu() - wanted), bound * largest(wanted) + 1e-14)
        << what << ", " << shard.name;
  }
}

inline ModulePipelineOptions doubles_on(at::Device device, const std::string& schedule) {
  ModulePipelineOptions options = doubles_in(schedule, 3);
  options.device = device;
  return options;
}

// Under every schedule and stage of ZeRO.
inline void expect_flows_of_one_process(const Rank& rank, at::Device device) {
  for (const int pipeline : {1, 2, 4}) {
    if (pipeline > rank.size()) continue;
    const PipelineGroups groups = groups_over(rank, pipeline);
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
      expect_gradients_of_one_process(groups, doubles_on(device, schedule));
    }
    ModulePipelineOptions recomputed = doubles_on(device, "1f1b");
    recomputed.recompute = Recompute::kUnits;
    expect_gradients_of_one_process(groups, recomputed);
  }
  for (const int stage : {1, 3}) {
    ModulePipelineOptions options = doubles_on(device, "1f1b");
    options.zero_stage = stage;
    expect_gradients_of_one_process(groups_over(rank, 1), options);
  }
}

}  // namespace troika::test
