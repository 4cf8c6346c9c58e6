#include <troika/base/error.h>
#include <troika/base/own_program.h>
#include <troika/base/version.h>
#include <troika/cli/ranks.h>
#include <troika/cli/verify_folder.h>
#include <troika/cli/verify_jobs.h>

#include <filesystem>

namespace troika {
namespace {

// The command line of a rank that goes on from trial `first`.
std::vector<std::string> rank_command(const VerifyOptions& options, std::size_t first) {
  std::vector<std::string> words = {
      own_program().string(),        "verify",    options.file,    "--ranks",
      std::to_string(options.ranks), "--layouts", options.layouts, "--steps",
      std::to_string(options.steps), "--folder",  options.folder,  "--first",
      std::to_string(first)};
  for (const std::string& one : options.overrides) {
    words.emplace_back("--set");
    words.push_back(one);
  }
  if (options.json) words.emplace_back("--json");
  return words;
}

LaunchResult run_job(const VerifyOptions& options, std::span<const Trial> trials,
                     std::size_t first) {
  LaunchOptions launch;
  launch.plan.ranks = launch.plan.ranks_per_node = most_ranks(trials);
  launch.command = rank_command(options, first);
  launch.version = kVersion;
  return run_ranks(launch);
}

}  // namespace

int run_jobs(const VerifyOptions& options, std::span<const Trial> trials,
             const std::function<void(const TrialResult&)>& on_result) {
  const TrialResults results(options.folder);
  for (std::size_t first = 0; first < trials.size(); ++first) {
    const LaunchResult job = run_job(options, trials, first);
    if (job.exit_code >= 128) return report_result(job);
    first = results.read().size();
    if (!job.failure) return 0;
    if (first == 0 || first >= trials.size()) {
      throw Error(job.failure->code, job.failure->message, job.failure->hint);
    }
    TrialResult failed;
    failed.layout = trials[first].name;
    failed.ranks = trials[first].ranks;
    failed.error = job.failure->message;
    on_result(failed);
  }
  return 0;
}

}  // namespace troika
