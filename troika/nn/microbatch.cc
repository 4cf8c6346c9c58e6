#include <ATen/ATen.h>
#include <troika/device/device.h>
#include <troika/nn/microbatch.h>

namespace troika {
namespace {

at::Tensor through_pinned_memory(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return to_device(host_memory_for(device, tensor).copy_(tensor), device);
}

}  // namespace

Microbatch to_device(Microbatch microbatch, at::Device device) {
  for (NamedTensor& each : microbatch.tensors) {
    each.tensor = through_pinned_memory(each.tensor, device);
  }
  microbatch.sample_ids = through_pinned_memory(microbatch.sample_ids, device);
  return microbatch;
}

void record_use(const Microbatch& microbatch) {
  for (const NamedTensor& each : microbatch.tensors) record_use(each.tensor);
  record_use(microbatch.sample_ids);
}

}  // namespace troika
