#include <troika/base/file.h>
#include <troika/observe/resources.h>
#include <troika/recipe/resolve.h>
#include <troika/train/run_folder.h>
#include <troika/train/summary.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string summary_json(const Recipe& recipe, const Job& job, const Trainer& trainer,
                         const std::string& last, Seconds seconds, const TensorMemory& tensors,
                         const BestModel& best, std::uint64_t staging_bytes) {
  const TrainProgress& state = trainer.progress();
  Json summary = last.empty() ? Json::object() : Json::parse(last);
  summary["steps"] = state.step;
  summary["samples"] = state.samples_consumed;
  summary["updates"] = state.updates;
  summary["seconds"] = seconds.count();
  if (const auto& found = best.best()) {
    summary["best"] = {{"metric", best.metric()}, {"step", found->step}, {"value", found->value}};
  }
  summary["run"] = run_folder(recipe).string();
  summary["world_size"] = job.size();
  for (const Axis axis : axes_of(job.mesh()))
    summary["mesh"][std::string(name_of(axis))] = job.mesh().size(axis);
  // What each rank alone knows. Ranks come here as they have handed over their parameters, so they
  // wait as long for each other as that may take.
  const auto of_all_ranks = [&job](std::int64_t value, std::string_view what) {
    return job.gather(value, {what, job.storage_deadline()});
  };
  const auto peak_memory = of_all_ranks(static_cast<std::int64_t>(resource_use().peak_memory_bytes),
                                        "peak memory of all ranks");
  std::map<std::string, std::vector<std::int64_t>> input_bytes;  // by axis, by rank
  for (const Group* group : {&job.data(), &job.tensor(), &job.pipeline(), &job.shard(),
                             &job.replicate(), &job.embedding(), &job.islands()}) {
    auto bytes =
        of_all_ranks(static_cast<std::int64_t>(group->input_bytes()), "input bytes of all ranks");
    const bool any = std::ranges::any_of(bytes, [](std::int64_t count) { return count > 0; });
    if (any || group == &job.data()) input_bytes[group->name()] = std::move(bytes);
  }
  const auto peak_tensors = of_all_ranks(tensors.peak_bytes, "peak of tensors of all ranks");
  const auto kept_tensors = of_all_ranks(tensors.live_bytes, "tensors that all ranks keep");
  const auto reserved =
      of_all_ranks(tensors.peak_reserved_bytes, "peak of reserved memory of all ranks");
  const auto staging =
      of_all_ranks(static_cast<std::int64_t>(staging_bytes), "memory for checkpoints of all ranks");
  const auto virtual_stages = static_cast<double>(virtual_stages_per_rank(recipe.parallel));
  const auto peak_activations =
      of_all_ranks(trainer.peak_stage_activations(), "activations of all ranks");
  const auto devices =
      job.gather(name_of(trainer.model().arena().device()), "devices of all ranks");
  for (const Member& member : job.members()) {
    const auto rank = static_cast<std::size_t>(member.rank);
    summary["ranks"].push_back(
        {{"rank", member.rank},
         {"host", member.host},
         {"pid", member.pid},
         {"device", devices[rank]},
         {"peak_memory_bytes", peak_memory[rank]},
         {"peak_tensor_bytes", peak_tensors[rank]},
         {"kept_tensor_bytes", kept_tensors[rank]},
         {"peak_activations", static_cast<double>(peak_activations[rank]) / virtual_stages}});
    if (reserved[rank] > 0) summary["ranks"].back()["peak_reserved_bytes"] = reserved[rank];
    if (staging[rank] > 0) summary["ranks"].back()["checkpoint_staging_bytes"] = staging[rank];
    for (const auto& [axis, bytes] : input_bytes) {
      summary["ranks"].back()["input_bytes"][axis] = bytes[rank];
    }
  }
  return summary.dump();
}

std::string read_summary(const std::filesystem::path& run) {
  std::string line = read_file(summary_path(run), 1 << 24);
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

}  // namespace troika
