#include <troika/observe/jsonl_sink.h>
#include <troika/observe/resources.h>
#include <troika/train/run_folder.h>
#include <troika/train/summary.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string summary_json(const Recipe& recipe, const Job& job, const TrainState& state,
                         const StepMetrics& last, Seconds seconds) {
  Json summary = Json::parse(to_json_line(last));
  summary["steps"] = state.step;
  summary["samples"] = state.samples_consumed;
  summary["updates"] = state.updates;
  summary["seconds"] = seconds.count();
  summary["run"] = run_folder(recipe).string();
  summary["world_size"] = job.size();
  for (const Axis axis : kAxes) summary["mesh"][std::string(name_of(axis))] = job.mesh().size(axis);
  // What each rank alone knows.
  const auto peak_memory = job.gather(static_cast<std::int64_t>(resource_use().peak_memory_bytes),
                                      {"peak memory of all ranks", job.deadline()});
  const auto bytes_sent = job.gather(static_cast<std::int64_t>(job.data().bytes_sent()),
                                     {"bytes sent by all ranks", job.deadline()});
  for (const Member& member : job.members()) {
    const auto rank = static_cast<std::size_t>(member.rank);
    summary["ranks"].push_back({{"rank", member.rank},
                                {"host", member.host},
                                {"pid", member.pid},
                                {"peak_memory_bytes", peak_memory[rank]},
                                {"bytes_sent", {{"data", bytes_sent[rank]}}}});
  }
  return summary.dump();
}

}  // namespace troika
