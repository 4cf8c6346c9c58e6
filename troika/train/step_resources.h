// What a step takes of the machine, for its line of metrics: memory, page faults, processor time,
// arithmetic, and the time that passed beside the step.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/observe/metrics.h>
#include <troika/observe/resources.h>

namespace troika {

// Measures steps one after the other, on one rank.
class StepResources {
 public:
  // `flops` is the arithmetic of a step on all ranks, `flops_per_second` what they could do.
  StepResources(at::Device device, double flops, double flops_per_second);

  // Begin and end a step, in which tensors reuse memory (begin_memory_step). end() adds figures to
  // its metrics, whose step_seconds must be there.
  void begin();
  void end(StepMetrics& metrics) const;
  // Adds the time that was not in the step since the last call, or since the first begin(). Call
  // as the metrics are about to be recorded.
  void add_time_outside(StepMetrics& metrics);

 private:
  at::Device device_;
  double flops_, flops_per_second_, cores_;
  ResourceUse before_;
  Clock::time_point recorded_ = {};
};

}  // namespace troika
