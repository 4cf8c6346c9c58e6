#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/plan/memory_report.h>
#include <troika/recipe/resolve.h>
#include <troika/train/job.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

// The parts of a step's peak as they are called, in both forms.
std::vector<std::pair<std::string, std::int64_t>> parts_of(const MemoryPlan& plan) {
  return {{"values", plan.values},           {"masters", plan.masters},
          {"gradients", plan.gradients},     {"optimizer", plan.optimizer},
          {"buffers", plan.buffers},         {"batches", plan.batches},
          {"activations", plan.activations}, {"transient", plan.transient}};
}

std::vector<std::pair<std::string, std::int64_t>> moments_of(const MemoryPlan& plan) {
  return {{"start", plan.start},
          {"step", plan.step()},
          {"evaluation", plan.evaluation},
          {"saving", plan.saving()}};
}

// The device that has the least left, or needs the most where no size is known.
std::size_t fullest_device(const DryRun& run) {
  const auto left = [&](std::size_t device) {
    return static_cast<std::int64_t>(run.memory.devices[device].free_bytes) -
           run.needs.devices[device];
  };
  std::size_t fullest = 0;
  for (std::size_t i = 1; i < run.needs.devices.size(); ++i) {
    if (left(i) < left(fullest)) fullest = i;
  }
  return fullest;
}

std::string verdict(std::int64_t needed, std::uint64_t bytes) {
  return needed <= static_cast<std::int64_t>(bytes) ? "it fits" : "it does not fit";
}

std::string device_text(const DryRun& run) {
  if (run.memory.devices.empty()) return "";
  const std::size_t device = fullest_device(run);
  const DeviceRoom& room = run.memory.devices[device];
  const std::int64_t needed = run.needs.devices[device];
  const std::size_t count = run.memory.devices.size();
  std::string text = room.name + " needs " + bytes_text(needed);
  if (count > 1) text += ", the most of " + std::to_string(count) + " devices";
  if (room.total_bytes > 0) {
    return text + "; it has " + format_bytes(room.total_bytes) + ": " +
           verdict(needed, room.free_bytes) + "\n";
  }
  return text + "; this machine has no such device, so only the host's memory is judged " +
         "(--device-memory says what a device has)\n";
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
}

std::string ranges_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    parts.push_back(std::to_string(ranks[i]));
    if (end > i + 1) parts.back() += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  constexpr std::size_t kShown = 6;
  if (parts.size() > kShown) {
    parts.resize(kShown);
    parts.emplace_back("...");
  }
  return join(parts, ", ");
}

DryRun dry_run(const Recipe& recipe, int ranks_per_node, const HostMemory& memory) {
  DryRun run{recipe, predict_job(recipe, memory.tensor_place()), ranks_per_node, memory, {}};
  run.needs = most_needs(run.kinds, mesh_of(recipe).size(), ranks_per_node, memory);
  return run;
}

std::string to_text(const DryRun& run) {
  TextRows rows = {{"ranks"}};
  for (const auto& [name, bytes] : parts_of({})) rows[0].push_back(name);
  for (const auto& [name, bytes] : moments_of({})) rows[0].push_back(name);
  rows[0].emplace_back("peak");
  for (const RankKind& kind : run.kinds) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(ranges_text(kind.ranks));
    for (const auto& [name, bytes] : parts_of(kind.plan)) row.push_back(bytes_text(bytes));
    for (const auto& [name, bytes] : moments_of(kind.plan)) row.push_back(bytes_text(bytes));
    row.push_back(bytes_text(kind.plan.peak()));
  }
  std::string text = mesh_of(run.recipe).describe() + "; tensors of each rank" +
                     (run.memory.devices.empty() ? "" : " on its device") + ":\n" +
                     text_table(rows, Align::kNumbers);
  text += device_text(run);
  text += "a host with " + std::to_string(run.ranks_per_node) +
          (run.ranks_per_node == 1 ? " rank" : " ranks") + " needs " + bytes_text(run.needs.host) +
          " (" + bytes_text(kProcessBytes) + " a rank beside its tensors)";
  if (run.memory.bytes > 0) {
    text += "; this one has " + format_bytes(run.memory.bytes) + ": " +
            verdict(run.needs.host, run.memory.bytes);
  }
  return text + "\n";
}

std::string to_json(const DryRun& run, const std::string& advice) {
  Json json;
  const Mesh mesh = mesh_of(run.recipe);
  json["world_size"] = mesh.size();
  for (const Axis axis : axes_of(mesh)) json["mesh"][std::string(name_of(axis))] = mesh.size(axis);
  json["ranks_per_node"] = run.ranks_per_node;
  json["process_bytes"] = kProcessBytes;
  json["needed_bytes"] = run.needs.host;
  json["host_memory_bytes"] = run.memory.bytes;
  for (std::size_t i = 0; i < run.memory.devices.size(); ++i) {
    const DeviceRoom& room = run.memory.devices[i];
    Json device{{"device", room.name}, {"needed_bytes", run.needs.devices[i]}};
    device["memory_bytes"] = room.total_bytes > 0 ? Json(room.total_bytes) : Json(nullptr);
    json["devices"].push_back(std::move(device));
  }
  json["fits"] = run.needs.can_be_judged(run.memory) ? Json(run.fits()) : Json(nullptr);
  if (!advice.empty()) json["advice"] = advice;
  const auto virtual_stages = static_cast<double>(virtual_stages_per_rank(run.recipe.parallel));
  std::map<int, const MemoryPlan*> plans;
  for (const RankKind& kind : run.kinds) {
    for (const int rank : kind.ranks) plans[rank] = &kind.plan;
  }
  for (const auto& [rank, plan] : plans) {
    Json own;
    own["rank"] = rank;
    own["device"] = device_name(run.memory, rank % run.ranks_per_node);
    for (const auto& [name, bytes] : parts_of(*plan)) own[name] = bytes;
    for (const auto& [name, bytes] : moments_of(*plan)) own[name] = bytes;
    own["peak_tensor_bytes"] = plan->peak();
    if (plan->place == TensorPlace::kDevice) {
      own["host_bytes"] = plan->host_bytes(run.memory.is_staged);
    }
    own["peak_activations"] = plan->peak_stage_activations / virtual_stages;
    json["ranks"].push_back(std::move(own));
  }
  return json.dump();
}

}  // namespace troika
