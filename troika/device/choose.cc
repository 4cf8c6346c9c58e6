#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/device/choose.h>
#include <troika/device/device.h>
#include <troika/device/plugin.h>

#include <optional>

namespace troika {
namespace {

constexpr std::string_view kAuto = "auto";

std::optional<at::Device> parsed(std::string_view word) {
  try {
    return at::Device(std::string(word));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// `without` is the setting that does without.
UsageError no_device(const std::string& setting, const std::string& kind,
                     const std::string& without) {
  const DevicePlugin& plugin = load_device_plugin();
  const bool known = kind == plugin.type;
  return UsageError(
      setting + ": this process has no " + kind + " device" + (known ? ": " + plugin.reason : ""),
      (known ? plugin.hint : "`troika doctor` says what is there") + "; " + without +
          " does without");
}

std::string setting(const std::string& key, std::string_view word) {
  return key + " = \"" + std::string(word) + "\"";
}

bool enough(int count, const HostPlace& place) {
  return place.devices_are_own || place.size <= count;
}

c10::DeviceIndex index_of(int count, const HostPlace& place) {
  return static_cast<c10::DeviceIndex>(place.rank % count);
}

}  // namespace

std::string device_refusal(std::string_view word) {
  if (word == kAuto) return "";
  const auto device = parsed(word);
  if (device && device->type() != at::kMeta) return "";
  return quote(word) + " is no device; write \"auto\", \"cpu\", \"cuda\" or \"cuda:1\"";
}

// LibTorch's own count would start its CUDA hooks, for good, before a plug-in can bring them.
int device_count(at::DeviceType type) {
  if (type == at::kCPU) return 1;
  if (type == at::kCUDA) static_cast<void>(load_device_plugin());
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

at::Device choose_device(std::string_view word, HostPlace place, const std::string& key) {
  if (word == kAuto) {
    const int count = device_count(at::kCUDA);
    if (count == 0 || !enough(count, place)) return at::kCPU;
    return {at::kCUDA, index_of(count, place)};
  }
  const std::string refusal = device_refusal(word);
  if (!refusal.empty()) throw UsageError(key + ": " + refusal);
  const at::Device asked = *parsed(word);
  if (asked.is_cpu()) return at::kCPU;
  const int count = device_count(asked.type());
  const std::string kind = c10::DeviceTypeName(asked.type(), /*lower_case=*/true);
  if (count == 0) throw no_device(setting(key, word), kind, setting(key, "cpu"));
  if (asked.has_index()) {
    if (asked.index() < count) return asked;
    throw UsageError(
        setting(key, word) + ": there are " + plural(count, kind + " device") + ", counted from 0",
        "CUDA_VISIBLE_DEVICES may hide others");
  }
  if (!enough(count, place)) {
    throw UsageError(setting(key, word) + ": " + plural(place.size, "rank") +
                         " on this host, and " + plural(count, kind + " device"),
                     "start " + plural(count, "rank") + " a host, or write " +
                         setting(key, kind + ":0") + " to share one");
  }
  return {asked.type(), index_of(count, place)};
}

}  // namespace troika
