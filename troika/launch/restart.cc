#include <troika/base/error.h>
#include <troika/launch/restart.h>
#include <troika/observe/log.h>

#include <optional>
#include <string>
#include <utility>

namespace troika {
namespace {

// Steps that were lost are taken again. A start that has taken none may have left the last step as
// it was, or have gone back to that of the checkpoint.
bool got_further(const LaunchResult& result) {
  const JobProgress& now = result.progress;
  const JobHistory& before = result.history;
  if (now.step > before.reached || now.checkpoint > before.checkpoint) return true;
  return now.step < before.reached && now.step > before.checkpoint;
}

std::string place_of(const JobProgress& progress) {
  if (progress.checkpoint == 0) return "the first step";
  return "step " + std::to_string(progress.checkpoint);
}

void log_restart(const LaunchResult& result, const RestartPolicy& policy) {
  const std::string place =
      policy.by == RestartsBy::kSteps ? " from " + place_of(result.progress) : "";
  log_warning(result.failure->message + "; starting again" + place + ", restart " +
              std::to_string(result.history.restarts + 1) + " of " +
              std::to_string(policy.max_restarts));
}

void log_crash_loop(const LaunchResult& result) {
  log_warning(result.failure->message + "; restart " + std::to_string(result.history.restarts) +
              " has come no further than step " + std::to_string(result.history.reached) +
              ": the job is not started again");
}

}  // namespace

LaunchResult run_with_restarts(LaunchOptions options, const RestartPolicy& policy) {
  options.max_restarts = policy.max_restarts;
  std::optional<LaunchResult> end_before;
  for (;;) {
    LaunchResult result = run_ranks(options);
    if (policy.max_restarts == 0 || !result.can_restart) return result;
    const bool by_steps = policy.by == RestartsBy::kSteps;
    check(!by_steps || options.progress, "a job that is to be started again says how far it is");
    // An object store may be away for longer than one start waits for it.
    const bool is_outage = result.failure->code == ExitCode::kStorage;
    if (by_steps && !is_outage && !got_further(result)) {
      log_crash_loop(result);
      return end_before ? *std::move(end_before) : result;
    }
    if (result.history.restarts >= policy.max_restarts) return result;
    log_restart(result, policy);
    options.history = {result.history.restarts + 1, result.progress.step,
                       result.progress.checkpoint};
    if (policy.prepare) policy.prepare(options);
    end_before = std::move(result);
  }
}

}  // namespace troika
