#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/device/choose.h>
#include <troika/device/device.h>
#include <troika/device/plugin_loader.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <array>
#include <cctype>
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

// A key of a recipe, or a flag.
std::string setting(const std::string& key, std::string_view word) {
  if (key.starts_with("--")) return key + " " + std::string(word);
  return key + " = \"" + std::string(word) + "\"";
}

// The word that was meant by one that names no device; empty if none is near.
std::string meant_by(std::string_view word) {
  std::string lower(word);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string name = lower.substr(0, lower.find(':'));
  const std::string number = lower.substr(name.size());
  const std::string known =
      name == "gpu" || name == "nvidia"
          ? "cuda"
          : nearest(name, std::array<std::string, 3>{"auto", "cpu", "cuda"}).value_or(name);
  const std::string meant = known + (known == "cuda" || known == name ? number : "");
  return meant != word && device_refusal(meant).empty() ? meant : "";
}

bool enough(int count, const HostPosition& place) {
  return place.devices_are_own || place.size <= count;
}

c10::DeviceIndex index_of(int count, const HostPosition& place) {
  return static_cast<c10::DeviceIndex>(place.rank % count);
}

}  // namespace

std::string device_refusal(std::string_view word) {
  if (word == kAuto) return "";
  const auto device = parsed(word);
  if (device && device->is_cpu() && device->index() > 0) {
    return quote(word) + " is no device: the host is one; write \"cpu\"";
  }
  if (device && device->type() != at::kMeta) return "";
  if (const std::string meant = meant_by(word); !meant.empty()) {
    return quote(word) + " is no device; did you mean " + quote(meant) + "?";
  }
  return quote(word) + " is no device; write \"auto\", \"cpu\", \"cuda\" or \"cuda:1\"";
}

// LibTorch's own count would start its CUDA hooks, for good, before a plug-in can bring them.
int device_count(at::DeviceType type) {
  if (type == at::kCPU) return 1;
  if (type == at::kCUDA) static_cast<void>(load_device_plugin());
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

int ranks_with_a_device(std::string_view word) {
  if (word == kAuto) return device_count(at::kCUDA);
  const auto device = parsed(word);
  if (!device || device->is_cpu()) return 0;
  return device->has_index() ? 1 : device_count(device->type());
}

std::string detail::reason_for_cpu(HostPosition place, const DevicePlugin& plugin, int shown) {
  constexpr const char* kTaken = "device = \"auto\" takes the CPU: ";
  if (plugin.usable()) {
    if (enough(plugin.devices, place)) return "";
    return kTaken + plural(place.size, "rank") + " on this host, and " +
           plural(plugin.devices, "GPU") + "; start " + plural(plugin.devices, "rank") +
           " a host, or name one GPU for all";
  }
  if (shown == 0) return "";
  return kTaken + plugin.reason + "; " + plugin.hint;
}

std::string reason_for_cpu(std::string_view word, HostPosition place) {
  if (word != kAuto) return "";
  return detail::reason_for_cpu(place, load_device_plugin(), count_gpu_devices());
}

at::Device choose_device(std::string_view word, HostPosition place, const std::string& key) {
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
        asked.is_cuda() ? "CUDA_VISIBLE_DEVICES may hide others" : "");
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
