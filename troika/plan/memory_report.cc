#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/plan/memory_report.h>
#include <troika/recipe/resolve.h>
#include <troika/train/job.h>

#include <algorithm>
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

// "0-3, 8" for 0, 1, 2, 3, 8.
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

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
}

std::int64_t max_host_bytes(const std::vector<RankKind>& kinds, int ranks, int ranks_per_node) {
  std::vector<std::int64_t> hosts(static_cast<std::size_t>((ranks - 1) / ranks_per_node + 1));
  for (const RankKind& kind : kinds) {
    const std::int64_t bytes = kind.plan.peak() + kProcessBytes;
    for (const int rank : kind.ranks)
      hosts[static_cast<std::size_t>(rank / ranks_per_node)] += bytes;
  }
  return *std::ranges::max_element(hosts);
}

DryRun dry_run(const Recipe& recipe, int ranks_per_node, std::uint64_t host_bytes) {
  DryRun run{recipe, predict_job(recipe), ranks_per_node, host_bytes};
  run.needed_bytes = max_host_bytes(run.kinds, mesh_of(recipe).size(), ranks_per_node);
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
  std::string text = mesh_of(run.recipe).describe() + "; tensors of each rank:\n" +
                     text_table(rows, Align::kNumbers);
  text += "a host with " + std::to_string(run.ranks_per_node) +
          (run.ranks_per_node == 1 ? " rank" : " ranks") + " needs " +
          bytes_text(run.needed_bytes) + " (" + bytes_text(kProcessBytes) +
          " a rank beside its tensors)";
  if (run.host_bytes > 0) {
    text += "; this one has " + format_bytes(run.host_bytes) + ": it " +
            (run.fits() ? "fits" : "does not fit");
  }
  return text + "\n";
}

std::string to_json(const DryRun& run, const std::string& advice) {
  Json json;
  const Mesh mesh = mesh_of(run.recipe);
  json["world_size"] = mesh.size();
  for (const Axis axis : kAxes) json["mesh"][std::string(name_of(axis))] = mesh.size(axis);
  json["ranks_per_node"] = run.ranks_per_node;
  json["process_bytes"] = kProcessBytes;
  json["needed_bytes"] = run.needed_bytes;
  json["host_memory_bytes"] = run.host_bytes;
  json["fits"] = run.fits();
  if (!advice.empty()) json["advice"] = advice;
  const auto virtual_stages = static_cast<double>(virtual_stages_per_rank(run.recipe.parallel));
  std::map<int, const MemoryPlan*> plans;
  for (const RankKind& kind : run.kinds) {
    for (const int rank : kind.ranks) plans[rank] = &kind.plan;
  }
  for (const auto& [rank, plan] : plans) {
    Json own;
    own["rank"] = rank;
    for (const auto& [name, bytes] : parts_of(*plan)) own[name] = bytes;
    for (const auto& [name, bytes] : moments_of(*plan)) own[name] = bytes;
    own["peak_tensor_bytes"] = plan->peak();
    own["peak_activations"] = plan->peak_stage_activations / virtual_stages;
    json["ranks"].push_back(std::move(own));
  }
  return json.dump();
}

}  // namespace troika
