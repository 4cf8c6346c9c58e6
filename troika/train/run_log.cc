#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/device/device.h>
#include <troika/observe/log.h>
#include <troika/train/metric_reporter.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_log.h>
#include <troika/train/saved_model.h>

namespace troika {
namespace {

std::string parameters_text(const ModelPart& model) {
  double all = 0, adapters = 0;
  for (const ParameterSpec& spec : model.parameters()) {
    all += static_cast<double>(spec.global_count());
    if (model.is_adapter(spec.name)) adapters += static_cast<double>(spec.global_count());
  }
  const std::string text = format_count(all) + " parameters";
  return adapters > 0 ? text + ", trained: " + format_count(adapters) + " in adapters" : text;
}

}  // namespace

void log_claim(Claim claim, const std::string& folder) {
  if (claim == Claim::kOverwritten) log_info("overwriting the run in " + folder);
  if (claim == Claim::kFinished) {
    log_info(folder + " is finished already; --overwrite trains it again");
  }
  if (claim == Claim::kRestarted) {
    log_warning(folder + " holds an unfinished run without a checkpoint: it starts again");
  }
}

std::string carriers_text(const Job& job, at::Device device) {
  const std::string of_host(job.world().engine_name());
  if (device.is_cpu()) return "engine " + of_host;
  const std::string name = "device " + name_of(device) + ", engine ";
  for (const Group* group : {&job.shard(), &job.replicate(), &job.tensor()}) {
    if (group->size() > 1) return name + group->engine_name(device);
  }
  // Stages of a pipeline exchange through the host.
  return name + of_host + (job.size() > 1 ? ", staged" : "");
}

void log_start(const Recipe& recipe, const Job& job, const Trainer& trainer, const Dataset& dataset,
               const std::string& carriers) {
  const DatasetFacts facts = dataset.facts();
  log_info(recipe.name + ": " + parameters_text(trainer.model()) + ", " +
           std::string(name_of(recipe.train.precision)) + ", " + job.mesh().describe() + ", " +
           carriers);
  if (facts.documents > 0) {
    log_info("data: " + format_count(static_cast<double>(facts.documents)) + " documents, " +
             format_count(static_cast<double>(facts.tokens)) + " tokens, " +
             std::to_string(facts.held_out_documents) + " documents held out");
  }
  if (facts.rows > 0) {
    log_info("data: " + format_count(static_cast<double>(facts.rows)) + " " +
             std::string(facts.rows_are) + ", " + std::to_string(facts.held_out_rows) +
             " held out");
  }
  for (const std::string& line : dataset.contents()) log_info(line);
}

void log_result(const Recipe& recipe, const Trainer& trainer, const StepMetrics& last,
                Seconds seconds, const BestModel& best) {
  const std::filesystem::path folder = run_folder(recipe);
  std::string line = last.step > 0 ? "done: loss " + format_fixed(last.loss, 4)
                                   : std::string("done: no step was left");
  if (last.evaluation) {
    const auto bits = last.evaluation->held_out_bits_per_byte;
    line += bits ? ", held-out " + format_fixed(*bits, 3) + " bits per byte"
                 : ", held-out loss " + format_fixed(last.evaluation->held_out_loss, 4);
    for (const NamedValue& each : last.evaluation->metrics) {
      line += ", " + each.name + " " + format_fixed(each.value, 4);
    }
  }
  const auto tokens = static_cast<double>(trainer.progress().tokens);
  log_info(line + ", " + format_rate(tokens / seconds.count(), unit_of(recipe)) + " over " +
           format_duration(seconds.count()));
  if (best.gives_up()) {
    log_info("stopped early: " + plural(best.evaluations_without_gain(), "evaluation") +
             " without a better " + best.metric());
  }
  if (best.metric() != kNoMetric && !best.best()) {
    log_warning("no " + best_model_path(folder).string() + ": no evaluation had a value of " +
                best.metric());
  }
  if (const auto& found = best.best()) {
    log_info("best " + best.metric() + " " + format_fixed(found->value, 4) + " after step " +
             std::to_string(found->step) + ": " + best_model_path(folder).string());
  }
  log_info("run folder: " + folder.string());
}

}  // namespace troika
