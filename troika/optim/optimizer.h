// Optimisers over the arena. One fused pass over memory reads a gradient, scales it, updates the
// optimiser's state and the master weight, and writes the low-precision working weight where there
// is one. Loops run over fixed chunks, so results have the same bits on any number of threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/optim/parameter_sums.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Numbers (0-dim) of an update on the arena's device, which the host has not read.
struct DeviceScale {
  at::Tensor factor;   // fp64: multiplies every gradient as it is read
  at::Tensor applies;  // bool. False: parameters and state keep their bits
};

// The place of a push in its round, for the rule of servers alone: outer_optimizer().
struct RoundShare {
  double share = 1;        // of the round's mean change that this push is
  bool ends_round = true;  // the last push of its round
};

struct StepInput {
  double learning_rate = 0;
  // Multiplies every gradient as it is read. The arena holds sums, so this is the clip factor over
  // (valid tokens x loss scale), all in one.
  double gradient_scale = 1;
  // The number of this update, from 1, for bias correction. Steps that were skipped do not count.
  std::int64_t step = 1;
  // Takes the place of `gradient_scale` if it is defined. Only where takes_device_scale().
  DeviceScale device_scale = {};
  RoundShare round = {};
};

// The state of one of Arena::trained_shards(), for files. The tensor is a view: values written to
// it are used.
struct NamedState {
  std::string parameter;  // global name
  std::string_view kind;  // "momentum", "exp_avg", "exp_avg_sq"
  std::int64_t begin;     // first element of the parameter that it is of
  at::Tensor tensor;      // flat, of the master's type
};

using SharedSums = std::shared_ptr<const ParameterSums>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates this rank's shards of the arena and publishes them. Every gradient must have been
  // claimed: throws InternalError naming one that was not, before any change. LAMB and LARS are
  // collective over the ranks that hold shards or slices of the same parameters.
  virtual void step(const StepInput& input) = 0;
  // Returns whether step() on a device takes a scale from there, and leaves out what does not
  // apply. The host then waits for no value. LAMB and LARS do not: the host has their norms.
  [[nodiscard]] virtual bool takes_device_scale() const { return true; }
  // Returns the complete state, in the order of Arena::trained_shards(). The update count comes
  // with each step.
  [[nodiscard]] virtual std::vector<NamedState> state() const = 0;
};

// The rules. With g the scaled gradient, w a weight, t the update's number and wd the weight decay,
// which is zero where ParameterSpec::decays is false (norms and biases):
//
//   sgd    d = g + wd w;  b = momentum b + d;  w -= lr (nesterov ? d + momentum b : b)
//   adamw  m, v: moving averages of g and g^2 (betas), bias-corrected by 1 - beta^t;
//          w -= lr (m^ / (sqrt(v^) + eps) + wd w)           Loshchilov and Hutter 2019, algorithm 2
//   lamb   u = m^ / (sqrt(v^) + eps) + wd w;  w -= lr |w| / |u| u      You et al. 2020, algorithm 2
//   lars   r = lr eta |w| / (|g| + wd |w|);  b = momentum b + r (g + wd w);
//          w -= nesterov ? momentum b + r (g + wd w) : b               You et al. 2017, algorithm 1
//   lion   u = sign(beta1 m + (1 - beta1) g);  w -= lr (u + wd w);
//          m = beta2 m + (1 - beta2) g                              Chen et al. 2023, algorithm 2
//
// Norms |.| are those of one parameter; where one of them is zero its factor is 1. LAMB's phi is
// the identity, LARS's eta is kLarsTrust. As in the authors' own programs, norms and biases take no
// part in the adaptation: their factor is 1 in LAMB, and r = lr in LARS.

// LARS's trust coefficient, as in the paper's experiments.
inline constexpr double kLarsTrust = 0.001;

}  // namespace troika
