// Copies from, to and between devices.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/library.h>

#include "device/backend/faults.h"
#include "device/backend/host_aliases.h"
#include "device/backend/late_copies.h"
#include "device/backend/launch.h"
#include "device/backend/memory.h"
#include "device/backend/pinned.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

constexpr const char* kCopy = "aten::copy_";

void copy_now(Launch& launch, const at::Tensor& from, const at::Tensor& to) {
  launch.reads(from);
  launch.writes(to);
  HostAliases aliases(to.device());
  const auto on_host = [&](const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor : aliases.of(tensor);
  };
  on_host(to).copy_(on_host(from));
}

// One run of bytes on either side, which a copy engine can move by itself. Anything else blocks, as
// CUDA does.
bool may_be_late(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor& host = from.is_cpu() ? from : to;
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
         from.is_contiguous() && to.is_contiguous() && from.is_conj() == to.is_conj() &&
         from.is_neg() == to.is_neg() && is_pinned_address(host.const_data_ptr());
}

Range bytes_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<Address>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

void* stored_bytes_of(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.mutable_data_ptr() : storage_of(tensor.mutable_data_ptr());
}

void copy_late(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to) {
  Launch launch(stream, kCopy, Launch::Start::kLate);
  launch.reads(from);
  launch.writes(to);
  // Poison would take from an earlier late copy what it has yet to read, or be overwritten by it.
  LateCopies::instance().execute_touching(bytes_of(to), launch.clock());
  LateCopies::instance().enqueue({launch.operation(), stored_bytes_of(to), stored_bytes_of(from),
                                  from.nbytes(), bytes_of(to), bytes_of(from),
                                  (from.is_cpu() ? from : to).storage()});
  count_event(&DeviceCounters::late_copies);
}

void copy_between_host_and_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::Stream stream = current_stream((from.is_cpu() ? to : from).device().index());
  if (non_blocking && may_be_late(from, to)) {
    copy_late(stream, from, to);
    return;
  }
  {
    Launch launch(stream, kCopy);
    copy_now(launch, from, to);
  }
  if (to.is_cpu()) {
    count_event(&DeviceCounters::host_reads);
  }
  wait_for_stream(stream);
}

// Runs on the stream of the source. Both streams wait for each other, so that either device can go
// on.
void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  const c10::Stream stream = current_stream(from.device().index());
  const c10::Stream other = current_stream(to.device().index());
  c10::Event ready(c10::DeviceType::HPU);
  ready.record(other);
  ready.block(stream);
  {
    Launch launch(stream, kCopy);
    copy_now(launch, from, to);
  }
  c10::Event copied(c10::DeviceType::HPU);
  copied.record(stream);
  copied.block(other);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) {
    return to;
  }
  if (from.is_cpu() || to.is_cpu()) {
    copy_between_host_and_device(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between_devices(from, to);
  } else {
    const c10::DeviceGuard guard(to.device());
    Launch launch(current_stream(to.device().index()), kCopy);
    copy_now(launch, from, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

// A copy resolves a conjugate or a negative itself. LibTorch would clone it first, which is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace troika::test
