// What the tests of ModulePipeline share: groups, a small net of eight units in fp64, and the same
// in one process.
#pragma once

#include <troika/parallel/pipeline/module_pipeline.h>

#include <map>
#include <string>
#include <vector>

#include "ranks/own_module/own_module.h"

namespace troika::test {

// A group of every `pipeline` ranks apart, and one of neighbours, as ModulePipeline makes them.
inline PipelineGroups groups_over(const Rank& rank, int pipeline) {
  EngineOptions options = rank.options();
  options.reduction_order = EngineOptions::ReductionOrder::kInOrder;
  const int width = rank.size() / pipeline;
  std::vector<int> along, beside;
  for (int i = 0; i < rank.size(); ++i) {
    if (i % width == rank.index() % width) along.push_back(i);
    if (i / width == rank.index() / width) beside.push_back(i);
  }
  PipelineGroups groups;
  groups.pipeline = make_group("pipeline", along, rank.index() / width, options);
  groups.data = make_group("data", beside, rank.index() % width, options);
  return groups;
}

inline torch::Tensor loss_sum(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target, at::Reduction::Sum);
}

// A convolution that makes [4, 4, 4] of [2, 6, 6].
struct ConvolutionImpl : torch::nn::Module {
  ConvolutionImpl() {
    torch::manual_seed(11);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(conv(x)); }
  torch::nn::Conv2d conv{nullptr};
};
TORCH_MODULE(Convolution);

inline torch::nn::Sequential dense(std::int64_t in, std::int64_t out, std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(in, out), torch::nn::Tanh());
  net->to(torch::kDouble);
  return net;
}

// Of eight units.
inline std::vector<NamedUnit> small_net() {
  std::vector<NamedUnit> units = {unit("conv", [] { return Convolution(); }, {4, 4, 4}),
                                  unit("second", [] { return dense(64, 9, 12); }, {9}),
                                  unit("third", [] { return dense(9, 7, 13); }, {7})};
  for (std::uint64_t i = 3; i < 7; ++i) {
    units.push_back(unit("unit" + std::to_string(i), [i] { return dense(7, 7, 20 + i); }, {7}));
  }
  units.push_back(unit("last", [] { return dense(7, 3, 14); }, {3}));
  return units;
}

// The same in one process.
struct SingleProcessNet {
  SingleProcessNet() {
    for (const NamedUnit& each : small_net()) {
      modules.push_back(each.make());
      for (const auto& item : modules.back().module->named_parameters()) {
        parameters[each.name + "." + item.key()] = item.value();
      }
    }
  }
  torch::Tensor loss(const Samples& batch) {
    torch::Tensor x = batch.x;
    for (const UnitModule& each : modules) x = each.forward({x})[0];
    return loss_sum(x, batch.y) / batch.x.size(0);
  }
  std::vector<UnitModule> modules;
  std::map<std::string, torch::Tensor> parameters;
};

inline Samples slice_of(const Samples& all, const ModulePipeline& model) {
  const std::int64_t count = all.x.size(0), ranks = model.data_ranks(), rank = model.data_rank();
  const std::int64_t begin = count * rank / ranks;
  return all.slice(begin, count * (rank + 1) / ranks - begin);
}

inline ModulePipelineOptions doubles_in(const std::string& schedule, int microbatches) {
  ModulePipelineOptions options;
  options.schedule = schedule;
  options.microbatches = microbatches;
  options.type = at::kDouble;
  return options;
}

}  // namespace troika::test
