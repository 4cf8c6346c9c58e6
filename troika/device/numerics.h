// How devices compute where LibTorch leaves a choice between speed, accuracy and equal bits. The
// choices are LibTorch's own (at::globalContext()) and hold for the process; a program that does
// not train from a recipe sets them there.
#pragma once

#include <ATen/core/Tensor.h>

namespace troika {

struct NumericSettings {
  // Matrix products and convolutions in fp32 round their inputs to TF32, where a GPU has it.
  bool tf32 = false;
  // cuDNN times its algorithms for each new shape, and takes the fastest.
  bool cudnn_benchmark = false;
  // An operator gives the same bits in each run on the same device, or throws.
  bool deterministic = false;
};

// Makes LibTorch compute on `device` as set. Does nothing for the host, whose kernels have no such
// choice. Call it before the first kernel.
void apply(const NumericSettings& settings, at::Device device);

// Sets the process's environment variables that deterministic kernels of a device need, unless
// they are set. Call it before threads start.
void prepare_environment(const NumericSettings& settings);

}  // namespace troika
