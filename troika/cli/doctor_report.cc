#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/cli/doctor_report.h>

#include <torch/headeronly/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

constexpr std::size_t kNameWidth = 12;

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

Finding processor(const MachineFacts& machine) {
  std::vector<std::string> features;
  if (machine.avx2) features.push_back("AVX2");
  if (machine.avx512f) features.push_back("AVX-512");
  if (machine.avx512_bf16) features.push_back("AVX-512 bf16");
  if (machine.amx_bf16) features.push_back("AMX bf16");
  const std::string model = machine.cpu_model.empty() ? "unknown" : machine.cpu_model;
  Finding finding{"processor", model + (features.empty() ? "" : " (" + join(features, ", ") + ")"),
                  ""};
  if (!machine.avx2) {
    finding.advice = "without AVX2 training is several times slower: use a newer machine";
  } else if (!machine.avx512_bf16 && !machine.amx_bf16) {
    finding.advice = "it computes bf16 in software, so precision \"auto\" is fp32 here";
  }
  return finding;
}

Finding cores(const MachineFacts& machine) {
  Finding finding{
      "cores", std::to_string(machine.usable_cores) + " usable of " + std::to_string(machine.cores),
      ""};
  if (machine.usable_cores < machine.cores) {
    finding.advice = "the container's CPU quota holds back the rest: raise it to use them";
  } else if (machine.usable_cores == 1) {
    finding.advice = "with one core, several ranks only take turns: use --ranks 1";
  }
  return finding;
}

Finding memory(const MachineFacts& machine) {
  constexpr std::uint64_t kSmall = std::uint64_t{2} << 30;
  Finding finding{"memory",
                  format_bytes(machine.usable_memory_bytes) + " usable of " +
                      format_bytes(machine.memory_bytes),
                  ""};
  if (machine.usable_memory_bytes < kSmall) {
    finding.advice = "each rank takes about 0.3 GiB before the model: keep model and batch small";
  }
  return finding;
}

// A machine without a GPU needs no advice.
Finding gpus(int count, const DevicePlugin& plugin) {
  if (plugin.usable()) {
    return {"GPUs", std::to_string(plugin.devices) + ", with " + plugin.libraries, ""};
  }
  const std::string there = count == 0 ? "none: " : "none of " + std::to_string(count) + ": ";
  return {"GPUs", there + plugin.reason, count == 0 ? "" : plugin.hint};
}

std::string devices_text(const std::vector<DeviceFacts>& devices) {
  if (devices.empty()) return "";
  std::string text = "\nDevices\n";
  for (const DeviceFacts& each : devices) {
    text += "  " + padded(each.device, kNameWidth) + each.name;
    if (!each.capability.empty()) text += " (compute capability " + each.capability + ")";
    text += ", " + format_bytes(each.free_bytes) + " free of " + format_bytes(each.total_bytes);
    if (each.bandwidth > 0) text += ", " + format_bandwidth(each.bandwidth);
    if (!each.nearest_cores.empty()) text += ", near cores " + each.nearest_cores;
    text += "\n";
  }
  return text;
}

nlohmann::json json_of(const DeviceFacts& facts) {
  nlohmann::json json = {{"device", facts.device},         {"name", facts.name},
                         {"capability", facts.capability}, {"total_bytes", facts.total_bytes},
                         {"free_bytes", facts.free_bytes}, {"bytes_per_second", facts.bandwidth},
                         {"pci_bus_id", facts.pci_bus_id}, {"nearest_cores", facts.nearest_cores}};
  if (facts.numa_node) json["numa_node"] = *facts.numa_node;
  return json;
}

bool reaches_others(const NetworkInterface& interface) {
  return interface.up && !interface.loopback && !interface.addresses.empty();
}

std::string network_text(const std::vector<NetworkInterface>& network) {
  std::string text = "\nNetwork\n";
  for (const NetworkInterface& each : network) {
    std::string found = each.addresses.empty() ? "no address" : join(each.addresses, ", ");
    if (!each.up) found += " (down)";
    if (each.loopback) found += " (this host only)";
    text += "  " + padded(each.name, kNameWidth) + found + "\n";
  }
  const auto is_down = [](const NetworkInterface& each) { return each.loopback && !each.up; };
  if (std::any_of(network.begin(), network.end(), is_down)) {
    return text +
           "  -> the loopback is down: no two ranks reach each other, not even on one host; "
           "`ip link set lo up` brings it up\n";
  }
  if (std::none_of(network.begin(), network.end(), reaches_others)) {
    text += "  -> ranks on one host work; several hosts need an interface with an address\n";
  }
  return text;
}

std::string engine_text(const EngineFinding& engine) {
  std::string text = "  " + padded(engine.facts.name, kNameWidth);
  if (engine.latency && engine.bandwidth) {
    text += padded(format_duration(engine.latency->time.count()), 10) +
            padded(format_bandwidth(engine.bandwidth->bus_bandwidth), 12);
  } else {
    text += padded("-", 10) + padded("-", 12);
  }
  text += engine.facts.reason + "\n";
  if (!engine.error.empty()) text += "  -> it failed: " + engine.error + "\n";
  return text;
}

nlohmann::json json_of(const AllReduceTiming& timing) {
  return {{"bytes", timing.bytes},
          {"seconds", timing.time.count()},
          {"bus_bytes_per_second", timing.bus_bandwidth}};
}

nlohmann::json json_of(const EngineFinding& engine) {
  nlohmann::json json = {{"name", engine.facts.name},
                         {"built", engine.facts.built},
                         {"usable", engine.facts.usable},
                         {"about", engine.facts.reason}};
  if (engine.latency) json["latency"] = json_of(*engine.latency);
  if (engine.bandwidth) json["bandwidth"] = json_of(*engine.bandwidth);
  if (!engine.error.empty()) json["error"] = engine.error;
  return json;
}

}  // namespace

bool DoctorReport::healthy() const {
  return std::all_of(engines.begin(), engines.end(),
                     [](const EngineFinding& each) { return each.error.empty(); });
}

std::vector<Finding> examine(const MachineFacts& machine, int gpu_count,
                             const DevicePlugin& plugin) {
  return {{"host", machine.host, ""},
          processor(machine),
          cores(machine),
          memory(machine),
          gpus(gpu_count, plugin),
          {"LibTorch", TORCH_VERSION, ""}};
}

std::string to_text(const DoctorReport& report) {
  std::string text = "Machine\n";
  for (const Finding& each : report.machine) {
    text += "  " + padded(each.name, kNameWidth) + each.found + "\n";
    if (!each.advice.empty()) text += "  -> " + each.advice + "\n";
  }
  text += devices_text(report.devices);
  text += network_text(report.network);
  text += "\nEngines: all-reduce between 2 ranks of this host\n  " + padded("", kNameWidth) +
          padded("4 KiB", 10) + padded("64 MiB", 12) + "\n";
  for (const EngineFinding& each : report.engines) text += engine_text(each);
  return text;
}

std::string to_json(const DoctorReport& report) {
  nlohmann::json json;
  for (const Finding& each : report.machine) {
    json["machine"].push_back(
        {{"name", each.name}, {"found", each.found}, {"advice", each.advice}});
  }
  json["devices"] = nlohmann::json::array();
  for (const DeviceFacts& each : report.devices) json["devices"].push_back(json_of(each));
  json["network"] = nlohmann::json::array();
  for (const NetworkInterface& each : report.network) {
    json["network"].push_back({{"name", each.name},
                               {"addresses", each.addresses},
                               {"up", each.up},
                               {"loopback", each.loopback}});
  }
  for (const EngineFinding& each : report.engines) json["engines"].push_back(json_of(each));
  json["healthy"] = report.healthy();
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troika
