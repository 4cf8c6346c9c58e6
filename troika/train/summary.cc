#include <troika/config/layout.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/observe/resources.h>
#include <troika/train/run_folder.h>
#include <troika/train/summary.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string summary_json(const Recipe& recipe, const Job& job, const Trainer& trainer,
                         const StepMetrics& last, Seconds seconds, std::int64_t peak_tensor_bytes) {
  const TrainState& state = trainer.state();
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
  std::map<std::string, std::vector<std::int64_t>> bytes_sent;  // by axis, by rank
  for (const Group* group : {&job.data(), &job.tensor(), &job.pipeline()}) {
    if (group->size() == 1 && group != &job.data()) continue;
    bytes_sent[group->axis()] = job.gather(static_cast<std::int64_t>(group->bytes_sent()),
                                           {"bytes sent by all ranks", job.deadline()});
  }
  const auto peak_tensors =
      job.gather(peak_tensor_bytes, {"peak of tensors of all ranks", job.deadline()});
  const auto chunks = static_cast<double>(chunks_per_rank(recipe.parallel));
  const auto peak_activations =
      job.gather(trainer.peak_chunk_activations(), {"activations of all ranks", job.deadline()});
  for (const Member& member : job.members()) {
    const auto rank = static_cast<std::size_t>(member.rank);
    summary["ranks"].push_back(
        {{"rank", member.rank},
         {"host", member.host},
         {"pid", member.pid},
         {"peak_memory_bytes", peak_memory[rank]},
         {"peak_tensor_bytes", peak_tensors[rank]},
         {"peak_activations", static_cast<double>(peak_activations[rank]) / chunks}});
    for (const auto& [axis, bytes] : bytes_sent) {
      summary["ranks"].back()["bytes_sent"][axis] = bytes[rank];
    }
  }
  return summary.dump();
}

}  // namespace troika
