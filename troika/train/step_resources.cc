#include <troika/observe/machine.h>
#include <troika/train/step_resources.h>
#include <troika/train/tensor_memory.h>

#include <algorithm>

namespace troika {

StepResources::StepResources(at::Device device, double flops, double flops_per_second)
    : device_(device), flops_(flops), flops_per_second_(flops_per_second), cores_(usable_cores()) {}

void StepResources::begin() {
  begin_memory_step();
  before_ = resource_use();
  if (recorded_ == Clock::time_point()) recorded_ = before_.at;
}

void StepResources::end(StepMetrics& metrics) const {
  const ResourceUse after = resource_use();
  end_memory_step();
  const auto add = [&](const char* name, auto value) {
    metrics.extras.push_back({name, static_cast<double>(value)});
  };
  add("memory_bytes", after.memory_bytes);
  add("cached_tensor_bytes", tensor_memory(at::kCPU).cached_bytes);
  add("page_faults", after.minor_faults - before_.minor_faults);
  if (!device_.is_cpu()) {
    const TensorMemory memory = tensor_memory(device_);
    add(kDevicePeakBytes, memory.peak_bytes);
    add(kDeviceReservedBytes, memory.peak_reserved_bytes);
  }
  add("cpu_utilisation", cpu_utilisation(before_, after, cores_));
  const double rate = flops_ / metrics.step_seconds;
  add("flops_per_second", rate);
  add("mfu", rate / flops_per_second_);
}

void StepResources::add_time_outside(StepMetrics& metrics) {
  const Clock::time_point now = Clock::now();
  const double outside = Seconds(now - recorded_).count() - metrics.step_seconds;
  metrics.extras.push_back({"outside_seconds", std::max(0.0, outside)});
  recorded_ = now;
}

}  // namespace troika
