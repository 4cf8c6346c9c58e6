#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <troika/base/error.h>
#include <troika/nn/autocast.h>

#include <string>

namespace troika {
namespace {

at::ScalarType checked(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return dtype;
  throw UsageError(std::string("autocast to ") + c10::toString(dtype) + ": it casts to 16 bits",
                   "take at::kBFloat16 or at::kHalf; troika::Autocast::disabled() casts nothing");
}

// A device whose extension registers nothing for autocast would fail in every operation.
void check_device(at::DeviceType device) {
  if (at::autocast::is_autocast_available(device) &&
      c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(
          at::autocast::get_autocast_dispatch_key_from_device_type(device))) {
    return;
  }
  throw UsageError("autocast on " + c10::DeviceTypeName(device, /*lower_case=*/true) +
                       ": LibTorch has no casts for this type of device",
                   "train without it there, or load the extension that registers them");
}

}  // namespace

Autocast::Autocast(at::DeviceType device, const State& state) : device_(device), before_{} {
  check_device(device);
  before_ = current();
  at::autocast::increment_nesting();
  set(state);
}

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : Autocast(device, {.enabled = true, .dtype = checked(dtype)}) {}

Autocast::Autocast(at::ScalarType dtype, const at::Tensor& tensor)
    : Autocast(dtype, tensor.device().type()) {}

Autocast Autocast::disabled(at::DeviceType device) {
  check_device(device);
  return {device, {.enabled = false, .dtype = at::autocast::get_autocast_dtype(device)}};
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set(before_);
}

Autocast::State Autocast::current() const {
  return {.enabled = at::autocast::is_autocast_enabled(device_),
          .dtype = at::autocast::get_autocast_dtype(device_)};
}

// LibTorch looks up copies by their parameter alone, whatever their dtype.
void Autocast::set(const State& state) const {
  if (state.dtype != at::autocast::get_autocast_dtype(device_)) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, state.enabled);
  at::autocast::set_autocast_dtype(device_, state.dtype);
}

}  // namespace troika
