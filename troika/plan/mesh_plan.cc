#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/comm/engines.h>
#include <troika/models/kind.h>
#include <troika/param/arena_layout.h>
#include <troika/plan/host_memory.h>
#include <troika/plan/mesh_plan.h>
#include <troika/train/model_part.h>
#include <troika/train/precision.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

// The units as they lie on one place of the tensor axis; nothing is exchanged.
Model model_at(const Recipe& recipe, int tensor_rank) {
  std::vector<int> ranks(static_cast<std::size_t>(recipe.parallel.tensor));
  std::iota(ranks.begin(), ranks.end(), 0);
  EngineOptions fake;
  fake.engine = "fake";
  const TensorAxis axis(make_group("tensor", ranks, tensor_rank, fake), Seconds(1));
  return build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed),
                     {axis, recipe.parallel.activation_checkpoint, has_embedding_group(recipe)});
}

// Declarations of the parameters on a rank's stages, with units counted as its arena counts them.
std::vector<ParameterSpec> specs_of(const Model& model, const std::vector<int>& units) {
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (ParameterSpec& spec : model.units[static_cast<std::size_t>(units[i])]->specs()) {
      if (!spec.tied_to.empty()) continue;
      spec.unit = static_cast<int>(i);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

void count_parameters(const Recipe& recipe, std::span<const ParameterSpec> specs, RankPlan& plan) {
  std::vector<const ParameterSpec*> pointers;
  for (const ParameterSpec& spec : specs) {
    pointers.push_back(&spec);
    plan.parameters += spec.local_count();
  }
  const auto index = std::ranges::find(plan.groups.shard, plan.rank) - plan.groups.shard.begin();
  ArenaLayoutOptions options;
  options.stage = static_cast<int>(recipe.parallel.zero_stage);
  if (options.stage > 0) {
    options.shards = static_cast<int>(plan.groups.shard.size());
    options.shard = static_cast<int>(index);
  }
  const ArenaLayout layout(pointers, numeric_types(recipe.train.precision), options);
  for (const ShardRange& shard : layout.shard_ranges()) plan.updated += shard.count;
  plan.kept = options.stage == 3 ? plan.updated : plan.parameters;
}

// "layers 0-3" for neighbours.
std::string units_text(const std::vector<std::string>& units) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < units.size();) {
    std::size_t end = i + 1;
    if (units[i].starts_with("layer ")) {
      const int first = std::stoi(units[i].substr(6));
      while (end < units.size() &&
             units[end] == "layer " + std::to_string(first + static_cast<int>(end - i))) {
        ++end;
      }
    }
    parts.push_back(end - i == 1 ? units[i]
                                 : "layers " + units[i].substr(6) + "-" + units[end - 1].substr(6));
    i = end;
  }
  return join(parts, ", ");
}

// Of more than itself, under the names that operations of a run have (Job): shards of the whole
// data axis are that axis.
std::vector<std::pair<std::string, std::vector<int>>> groups_with_peers(const GroupRanks& groups) {
  std::vector<std::pair<std::string, std::vector<int>>> all;
  if (groups.shard == groups.data || groups.replicate == groups.data) {
    all.emplace_back("data", groups.data);
  } else {
    all.emplace_back("data shard", groups.shard);
    all.emplace_back("data replica", groups.replicate);
  }
  all.emplace_back("tensor", groups.tensor);
  all.emplace_back("pipeline", groups.pipeline);
  all.emplace_back("tied stages", groups.embedding);
  all.emplace_back("islands", groups.islands);
  std::erase_if(all, [](const auto& group) { return group.second.size() < 2; });
  return all;
}

// "0 1", "0-63" or "0-56 by 8": the ranks of a group are as far from each other as their
// neighbours.
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kFew = 4;
  const int step = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  const auto breaks = [step](int one, int next) { return next - one != step; };
  if (ranks.size() <= kFew || std::ranges::adjacent_find(ranks, breaks) != ranks.end()) {
    std::vector<std::string> words;
    for (const int rank : ranks) words.push_back(std::to_string(rank));
    return join(words, " ");
  }
  return std::to_string(ranks.front()) + "-" + std::to_string(ranks.back()) +
         (step == 1 ? "" : " by " + std::to_string(step));
}

std::string groups_text(const GroupRanks& groups) {
  std::vector<std::string> parts;
  for (const auto& [name, ranks] : groups_with_peers(groups)) {
    parts.push_back(name + " " + ranks_text(ranks));
  }
  return parts.empty() ? "no other rank" : join(parts, "; ");
}

}  // namespace

MeshPlan plan_mesh(const Recipe& recipe, int ranks_per_node) {
  const HostMemory host = memory_of_planned_host(recipe.train.device, ranks_per_node, {});
  MeshPlan plan;
  plan.mesh = mesh_of(recipe);
  std::vector<Model> models;
  for (int i = 0; i < plan.mesh.size(Axis::kTensor); ++i) models.push_back(model_at(recipe, i));
  const std::vector<int> cut = cut_of(recipe.parallel, models.front().facts);
  for (const ParameterSpec& spec : parameters_of(models.front())) {
    plan.parameters += spec.global_count();
  }
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    RankPlan own;
    own.rank = rank;
    own.device = device_name(host, rank % ranks_per_node);
    own.coordinates = plan.mesh.coordinates(rank);
    own.groups = groups_of(recipe, rank);
    own.stages = stages_of(recipe.parallel, plan.mesh.coordinate(rank, Axis::kPipeline));
    std::vector<int> held;
    for (const int stage : own.stages) {
      for (int unit = cut[static_cast<std::size_t>(stage)];
           unit < cut[static_cast<std::size_t>(stage) + 1]; ++unit) {
        held.push_back(unit);
        own.units.push_back(recipe.model.kind().unit_name(recipe.model.options(), unit));
      }
    }
    const auto tensor = static_cast<std::size_t>(plan.mesh.coordinate(rank, Axis::kTensor));
    count_parameters(recipe, specs_of(models[tensor], held), own);
    plan.ranks.push_back(std::move(own));
  }
  return plan;
}

std::string to_text(const MeshPlan& plan) {
  std::string text = plan.mesh.describe() + ", " +
                     format_count(static_cast<double>(plan.parameters)) + " parameters\n";
  TextRows rows = {{"rank"}};
  std::vector<Axis> axes;
  for (const Axis axis : kAxes) {
    if (plan.mesh.size(axis) == 1) continue;
    axes.push_back(axis);
    rows[0].emplace_back(name_of(axis));
  }
  const bool on_devices = plan.ranks.front().device != "cpu";
  if (on_devices) rows[0].emplace_back("device");
  for (const char* title : {"holds", "parameters", "kept", "updated", "talks to"}) {
    rows[0].emplace_back(title);
  }
  for (const RankPlan& rank : plan.ranks) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::to_string(rank.rank));
    for (const Axis axis : axes) {
      row.push_back(std::to_string(rank.coordinates[static_cast<std::size_t>(axis)]));
    }
    if (on_devices) row.push_back(rank.device);
    row.push_back(units_text(rank.units));
    for (const std::int64_t count : {rank.parameters, rank.kept, rank.updated}) {
      row.push_back(format_count(static_cast<double>(count)));
    }
    row.push_back(groups_text(rank.groups));
  }
  return text + text_table(rows);
}

std::string to_json(const MeshPlan& plan) {
  Json json;
  json["world_size"] = plan.mesh.size();
  for (const Axis axis : axes_of(plan.mesh))
    json["mesh"][std::string(name_of(axis))] = plan.mesh.size(axis);
  json["parameters"] = plan.parameters;
  for (const RankPlan& rank : plan.ranks) {
    Json own;
    own["rank"] = rank.rank;
    own["device"] = rank.device;
    for (const Axis axis : axes_of(plan.mesh)) {
      own["coordinates"][std::string(name_of(axis))] =
          rank.coordinates[static_cast<std::size_t>(axis)];
    }
    own["stages"] = rank.stages;
    own["units"] = rank.units;
    own["parameters"] = rank.parameters;
    own["kept"] = rank.kept;
    own["updated"] = rank.updated;
    own["groups"] = Json::object();
    for (const auto& [name, ranks] : groups_with_peers(rank.groups)) own["groups"][name] = ranks;
    json["ranks"].push_back(std::move(own));
  }
  return json.dump();
}

}  // namespace troika
