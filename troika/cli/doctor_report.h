// The findings of `troika doctor`, and how it reports them.
#pragma once

#include <troika/comm/bootstrap/network.h>
#include <troika/comm/engines.h>
#include <troika/comm/measure.h>
#include <troika/device/facts.h>
#include <troika/device/plugin.h>
#include <troika/observe/machine.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

// One thing about the machine: what there is, and what to do about it, if anything.
struct Finding {
  std::string name;
  std::string found;
  std::string advice;
};

// An engine, and how fast 2 ranks are with it.
struct EngineFinding {
  EngineFacts facts;
  std::optional<AllReduceTiming> latency;    // of a small tensor
  std::optional<AllReduceTiming> bandwidth;  // of a large one
  std::string error;                         // why it could not be measured
};

struct DoctorReport {
  std::vector<Finding> machine;
  std::vector<DeviceFacts> devices;  // beside the host
  std::vector<NetworkInterface> network;
  std::vector<EngineFinding> engines;

  // Returns whether every engine that should work does.
  [[nodiscard]] bool healthy() const;
};

// Derives the findings from plain facts, so that every piece of advice can be tested. `gpus` is how
// many devices the NVIDIA driver shows, `plugin` how many of them can be used, or why none.
[[nodiscard]] std::vector<Finding> examine(const MachineFacts& machine, int gpus,
                                           const DevicePlugin& plugin);

[[nodiscard]] std::string to_text(const DoctorReport& report);
[[nodiscard]] std::string to_json(const DoctorReport& report);

}  // namespace troika
