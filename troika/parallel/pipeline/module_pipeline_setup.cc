#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/mesh/mesh.h>
#include <troika/parallel/pipeline/cut.h>
#include <troika/parallel/pipeline/module_pipeline_setup.h>
#include <troika/rendezvous/agreement.h>
#include <troika/schedule/generate.h>
#include <troika/session/source_agreement.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

namespace troika::detail {
namespace {

// No cut is the best of costs that are not numbers, or endless.
void check_costs(std::span<const NamedUnit> units) {
  double sum = 0;
  for (const NamedUnit& each : units) {
    sum += each.cost;
    if (each.cost >= 0 && std::isfinite(sum)) continue;
    std::ostringstream text;
    text << "unit " << quote(each.name, 200) << " has a cost of " << each.cost;
    throw UsageError(text.str(), "costs are numbers of at least 0, with a finite sum");
  }
}

// The values stand in the names, for the error.
std::vector<SourcePart> parts_of_setup(std::span<const NamedUnit> units,
                                       const ModulePipelineOptions& options) {
  std::vector<SourcePart> parts;
  const auto add = [&](const std::string& option, const std::string& value) {
    parts.push_back({option + " = " + value, 0});
  };
  add("schedule", options.schedule);
  add("virtual_stages", std::to_string(options.virtual_stages));
  std::vector<std::string> stage_units;
  for (const std::int64_t each : options.stage_units) stage_units.push_back(std::to_string(each));
  add("stage_units", "[" + join(stage_units, ", ") + "]");
  add("microbatches", std::to_string(options.microbatches));
  add("zero_stage", std::to_string(options.zero_stage));
  add("cut_gradients", options.cut_gradients == CutGradients::kEachMicrobatch ? "each microbatch"
                                                                              : "last microbatch");
  add("type", c10::toString(options.type));
  for (const NamedUnit& each : units) parts.push_back({"unit " + quote(each.name, 200), 0});
  add("the number of units", std::to_string(units.size()));
  return parts;
}

}  // namespace

ModulePipelineOptions resolved(ModulePipelineOptions options, int pipeline) {
  options.pipeline = pipeline;
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    throw UsageError("zero_stage = " + std::to_string(options.zero_stage) + ": there are 0 to 3");
  }
  if (options.microbatches < 1) {
    throw UsageError("microbatches = " + std::to_string(options.microbatches) + ": at least 1");
  }
  if (options.type != at::kFloat && options.type != at::kDouble) {
    throw UsageError(std::string("a ModulePipeline of ") + c10::toString(options.type),
                     "units compute in fp32 or fp64");
  }
  if (options.zero_stage == 3) options.recompute = Recompute::kUnits;
  options.virtual_stages = resolve_virtual_stages(options.schedule, options.virtual_stages);
  check_schedule(options.schedule, {pipeline, options.virtual_stages, options.microbatches});
  if (pipeline == 1) {
    options.schedule = "1f1b";
    options.virtual_stages = 1;
    options.stage_units.clear();
  }
  if (options.cut_gradients == CutGradients::kEachMicrobatch && options.zero_stage >= 2 &&
      splits_backward(options.schedule)) {
    throw UsageError("gradients cut after each microbatch: schedule = \"" + options.schedule +
                         "\" needs them whole",
                     "take CutGradients::kLastMicrobatch, or another schedule");
  }
  return options;
}

void agree_on_setup(const PipelineGroups& groups, Seconds timeout, std::span<const NamedUnit> units,
                    const ModulePipelineOptions& options) {
  SharedSource setup;
  setup.title = "the ModulePipeline";
  setup.parts = [&] { return parts_of_setup(units, options); };
  for (const Group* group : {&groups.data, &groups.pipeline}) {
    ValidationError difference;
    try {
      agree_on_sources(Session::on(*group, timeout), {&setup, 1},
                       {"options and units", timeout, "give all ranks the same options and units"});
    } catch (const DataError& error) {  // on all ranks of this group; others have to hear of it
      difference = {error.what(), error.hint()};
    }
    throw_on_all_ranks(groups, timeout, difference);
  }
}

std::vector<int> cut_units(std::span<const NamedUnit> units, const ModulePipelineOptions& options) {
  const int stages = options.pipeline * options.virtual_stages;
  const auto count = static_cast<std::int64_t>(units.size());
  if (count < stages) {
    throw UsageError(std::to_string(count) + " units for " + std::to_string(stages) + " stages",
                     "name more units, or take fewer pipeline ranks or virtual stages");
  }
  std::set<std::string> names;
  for (const NamedUnit& each : units) {
    if (!names.insert(each.name).second) {
      throw UsageError("two units are called " + quote(each.name, 200));
    }
  }
  check_costs(units);
  if (options.stage_units.empty()) {
    std::vector<double> costs;
    for (const NamedUnit& each : units) costs.push_back(each.cost);
    return cut_by_cost(costs, stages);
  }
  const std::vector<int> cut = cut_by_hand(options.stage_units);
  const bool fits = std::ssize(options.stage_units) == stages && cut.back() == count &&
                    std::ranges::all_of(options.stage_units, [](auto n) { return n > 0; });
  if (!fits) {
    throw UsageError("stage_units must be " + std::to_string(stages) +
                     " numbers, each at least 1, that add up to " + std::to_string(count) +
                     " units");
  }
  return cut;
}

PipelineGroups groups_of(const Session& session, int pipeline) {
  if (pipeline < 1 || session.size() % pipeline != 0) {
    throw UsageError("pipeline = " + std::to_string(pipeline) + " does not divide " +
                         std::to_string(session.size()) + " ranks",
                     "take a number of ranks that is a multiple of it");
  }
  const Mesh mesh({1, pipeline, session.size() / pipeline, 1, 1});
  const auto group = [&](const char* name, Axis axis) {
    if (mesh.size(axis) == session.size()) return session.world();
    return session.make_group(name, mesh.ranks_along(session.rank(), axis),
                              mesh.coordinate(session.rank(), axis));
  };
  PipelineGroups groups;
  groups.pipeline = mesh.size(Axis::kPipeline) == 1 ? Group() : group("pipeline", Axis::kPipeline);
  groups.data = mesh.size(Axis::kData) == 1 ? Group() : group("data", Axis::kData);
  return groups;
}

std::vector<std::string> names_of_all(const Arena& arena, const Group& pipeline, Seconds timeout) {
  std::string own;
  for (const auto& each : arena.parameters()) own += each->spec().name + "\n";
  std::vector<std::string> names;
  for (const std::string& text : Session::on(pipeline, timeout).gather(own, "parameter names")) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) names.push_back(line);
  }
  return names;
}

ModulePipelineOptions with_timeout(ModulePipelineOptions options, Seconds usual) {
  options.timeout = options.timeout.value_or(usual);
  return options;
}

void throw_on_all_ranks(const PipelineGroups& groups, Seconds timeout, const ValidationError& own) {
  // Of this rank's stages, by what they say.
  const std::string mine = own.text.empty() ? "" : own.text + "\n" + own.hint;
  const auto said = Session::on(groups.data, timeout).gather(mine, "units");
  std::string told;
  for (const auto& [problem, ranks] : ranks_by_text(said)) {
    const std::size_t end = problem.find('\n');
    told += problem.substr(0, end);
    if (ranks.size() < said.size()) {
      told += (ranks.size() == 1 ? ", on data rank " : ", on data ranks ") + list_ranks(ranks);
    }
    told += problem.substr(end) + "\n";
  }
  // Of all stages.
  std::string message, hint;
  for (const std::string& all : Session::on(groups.pipeline, timeout).gather(told, "units")) {
    std::istringstream lines(all);
    for (std::string text, advice; std::getline(lines, text) && std::getline(lines, advice);) {
      if (message.empty()) hint = advice;
      message += (message.empty() ? "" : "; ") + text;
    }
  }
  if (!message.empty()) throw UsageError(message, hint);
}

}  // namespace troika::detail
