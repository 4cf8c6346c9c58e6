#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <troika/base/error.h>
#include <troika/base/pause.h>
#include <troika/base/units.h>
#include <troika/device/device.h>

#include <optional>
#include <thread>

namespace troika {
namespace {

// Looks this often without giving up the core, then every kPollInterval: most copies are short.
constexpr int kBusyLooks = 200;
constexpr std::chrono::microseconds kPollInterval{50};

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

std::string name_of(at::Device device) {
  return device.str();
}

// The device is current wherever LibTorch sets it back to the one that was current before: on a
// GPU that would make a context there, which takes memory.
struct DeviceEvent::Impl {
  explicit Impl(at::Device on) : device(on), event(std::in_place, on.type()) {
    const c10::DeviceGuard here(device);
    event->record(current_stream(device));
  }
  ~Impl() {
    const c10::DeviceGuard here(device);
    event.reset();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  at::Device device;
  std::optional<c10::Event> event;
};

DeviceEvent DeviceEvent::record(at::Device device) {
  DeviceEvent event;
  if (!device.is_cpu() && device.type() != at::kMeta) event.impl_ = std::make_shared<Impl>(device);
  return event;
}

bool DeviceEvent::passed() const {
  return !impl_ || impl_->event->query();
}

void DeviceEvent::wait(const Deadline& deadline, const std::string& what) const {
  for (int look = 0; !passed(); ++look) {
    if (deadline.passed()) {
      throw DeadlineError(name_of(impl_->device) + " has not come to " + what + " within " +
                          format_duration(deadline.timeout().count()));
    }
    if (look < kBusyLooks) {
      pause_core();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  // What the event stands for happens before what this thread does next.
  if (impl_) impl_->event->synchronize();
}

void DeviceEvent::block_stream() const {
  if (!impl_) return;
  const c10::DeviceGuard here(impl_->device);
  impl_->event->block(current_stream(impl_->device));
}

struct DeviceStream::Impl {
  std::optional<c10::Stream> stream;
};

DeviceStream::DeviceStream(at::Device device) : impl_(std::make_unique<Impl>()) {
  if (device.is_cpu() || device.type() == at::kMeta) return;
  impl_->stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

DeviceStream::DeviceStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DeviceStream DeviceStream::default_of(at::Device device) {
  auto impl = std::make_unique<Impl>();
  if (!device.is_cpu() && device.type() != at::kMeta) {
    impl->stream = c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device);
  }
  return DeviceStream(std::move(impl));
}

DeviceStream::~DeviceStream() = default;
DeviceStream::DeviceStream(DeviceStream&&) noexcept = default;
DeviceStream& DeviceStream::operator=(DeviceStream&&) noexcept = default;

struct DeviceStream::Scope::Impl {
  std::optional<c10::StreamGuard> guard;
};

DeviceStream::Scope::Scope(const DeviceStream& stream) : impl_(std::make_unique<Impl>()) {
  if (stream.impl_->stream) impl_->guard.emplace(*stream.impl_->stream);
}

DeviceStream::Scope::~Scope() = default;

void record_use(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

at::Tensor host_memory_for(at::Device device, const at::Tensor& like) {
  const bool pinned = !device.is_cpu() && device.type() != at::kMeta;
  return at::empty(like.sizes(), at::TensorOptions(like.scalar_type()).pinned_memory(pinned));
}

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(device, /*non_blocking=*/true);
}

at::Tensor to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  return tensor.to(at::kCPU);
}

}  // namespace troika
