#include <ATen/ATen.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/observe/resources.h>
#include <troika/train/run_folder.h>
#include <troika/train/summary.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

// What each rank alone knows: [ranks, 2] of peak memory and bytes sent.
at::Tensor gather_figures(const Job& job) {
  const at::Tensor own = at::tensor({static_cast<std::int64_t>(resource_use().peak_memory_bytes),
                                     static_cast<std::int64_t>(job.data().bytes_sent())},
                                    at::kLong);
  const at::Tensor all = at::empty({job.size(), 2}, at::kLong);
  job.data().all_gather(all, own, {"figures of all ranks", job.deadline()}).wait();
  return all;
}

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
  const at::Tensor figures = gather_figures(job);
  for (const Member& member : job.members()) {
    summary["ranks"].push_back(
        {{"rank", member.rank},
         {"host", member.host},
         {"pid", member.pid},
         {"peak_memory_bytes", figures[member.rank][0].item<std::int64_t>()},
         {"bytes_sent", {{"data", figures[member.rank][1].item<std::int64_t>()}}}});
  }
  return summary.dump();
}

}  // namespace troika
