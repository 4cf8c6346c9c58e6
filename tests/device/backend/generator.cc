#include "device/backend/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include "device/backend/timeline.h"

namespace troika::test {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(c10::Device device, at::Generator host)
      : c10::GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::HPU)),
        host_(std::move(host)) {}

  void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
  [[nodiscard]] std::uint64_t current_seed() const override { return host_.current_seed(); }
  std::uint64_t seed() override { return host_.seed(); }
  void set_offset(std::uint64_t offset) override { host_.set_offset(offset); }
  [[nodiscard]] std::uint64_t get_offset() const override { return host_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  [[nodiscard]] c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

  [[nodiscard]] const at::Generator& host() const { return host_; }

 private:
  [[nodiscard]] DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device(), host_.clone());
  }

  at::Generator host_;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  const int index = device_or_current(device);
  return at::make_generator<DeviceGenerator>(test_device(index), at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const generators = [] {
    auto* const all = new std::vector<at::Generator>;
    for (int index = 0; index < kTestDevices; ++index) {
      all->push_back(new_generator(static_cast<c10::DeviceIndex>(index)));
    }
    return all;
  }();
  return generators->at(static_cast<std::size_t>(device_or_current(device)));
}

at::Generator host_generator(const at::Generator& generator) {
  const auto* const own = dynamic_cast<const DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, "expected a generator of the test device, but found one of ",
              generator.device());
  return own->host();
}

}  // namespace troika::test
