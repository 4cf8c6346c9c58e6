// A model is a row of units, and what planners and meters want to know of them.
#pragma once

#include <troika/nn/stage.h>
#include <troika/nn/tensor_axis.h>

#include <memory>
#include <string>
#include <vector>

namespace troika {

struct ModelFacts {
  // The floating-point operations of one sample, forward and backward (a multiply-add counts two).
  double flops_per_sample = 0;
  // The floating-point operations by unit, by which a pipeline is cut.
  std::vector<double> unit_flops;
  // The targets of one sample that can count: seq_len, or 1.
  std::int64_t targets_per_sample = 1;
  // True if its units communicate with the other data ranks. Each rank then passes them equally
  // often, with microbatches without samples where it has fewer.
  bool pads_microbatches = false;

  // Counts `targets` in a sample, where operations were those of one.
  void count_targets(std::int64_t targets) {
    targets_per_sample = targets;
    flops_per_sample *= static_cast<double>(targets);
    for (double& flops : unit_flops) flops *= static_cast<double>(targets);
  }
};

struct Model {
  std::vector<std::unique_ptr<Unit>> units;
  ModelFacts facts;
  // The names of all linear layers that could have an adapter, and of those that have one. Empty
  // where no adapter was asked for.
  std::vector<std::string> linear_layers, adapted_layers;
};

// The parts of a job's layout that shape the units of a rank.
struct ModelLayout {
  TensorAxis tensor;
  // The recomputation. Blocks handle kSelective; the stage that holds the units handles kFull.
  ActivationCheckpoint checkpoint = ActivationCheckpoint::kNone;
  // True if the first and the last unit are in stages of different ranks. With tied embeddings, the
  // last has a replica of the weight under the same name.
  bool tied_across_stages = false;
  // The settings of units that compute with autograd: the type of activations, whether they run
  // their forward pass again, and the data ranks, whose batches a norm may see as one.
  at::ScalarType type = at::kFloat;
  Recompute recompute = Recompute::kNone;
  Group data = {};
  Seconds timeout = Seconds(60);
  // True where units compute on a device, or are to in a dry run without one.
  bool on_device = false;
};

}  // namespace troika
