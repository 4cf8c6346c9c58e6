// Starts the ranks of this host, watches them, and ends them: all together, within seconds, and
// with one root cause to tell, whatever happens to any of them.
#pragma once

#include <troika/base/failure_timing.h>
#include <troika/launch/cores.h>
#include <troika/launch/history.h>
#include <troika/launch/options.h>
#include <troika/launch/root_cause.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// Says what becomes of a job when one of its ranks has died, or has lost its peers.
enum class OnDeath { kJobEnds, kRankStartsAgain, kJobGoesOn };

struct LaunchOptions {
  LaunchPlan plan;
  std::vector<std::string> command;                // of a rank
  std::map<std::string, std::string> environment;  // of the ranks, on top of ours and torchrun's
  // Says whether signals to this process are for the ranks. A launcher that is a rank leaves them
  // to its job.
  bool takes_signals = true;
  std::string version;   // of troika; all nodes must have the same
  int usable_cores = 0;  // of this host; 0: find out
  // The cores that each rank of this host is bound to, which are then its threads at most. A rank
  // without any is not bound.
  std::vector<CoreList> cores = {};
  // The folder of the ranks' flight recorders, if any. The ranks find it in TROIKA_RECORDERS.
  std::filesystem::path recorders = {};
  Seconds rendezvous_timeout = Seconds(300);  // for the other nodes to come
  // The policy for exit reports: a rank that ends with status 0 must have sent one, or may be any
  // program.
  ReportPolicy report_policy = ReportPolicy::kExpected;
  // The time that the others have, after a failure, to report what they saw.
  Seconds report_time = failure_timing::kReportTime;
  Seconds grace = failure_timing::kTerminateGrace;            // between SIGTERM and SIGKILL
  Seconds interrupt_grace = failure_timing::kInterruptGrace;  // between Ctrl-C and SIGKILL
  // The launchers of several nodes agree on the largest numbers that one of them gives.
  JobHistory history = {};
  int max_restarts = 0;  // for the ranks to read; run_with_restarts() starts them again
  // Returns why the job cannot go on with `fewer`, which has the ranks of some nodes alone, and ""
  // where it can. Asked where others do not come back for another start. Empty: it cannot.
  std::function<std::string(const LaunchPlan& fewer)> why_not_on = {};
  // Decides on a death of a rank, which has died as often before. Empty: the job ends.
  std::function<OnDeath(int rank, int deaths_before)> on_death = {};
  // Returns how far the job has come, once the ranks of this node have ended. Node 0's counts.
  std::function<JobProgress()> progress = {};
};

struct LaunchResult {
  // The exit status: 0, the code of the root cause, or 128 + the signal that asked the launcher to
  // end.
  int exit_code = 0;
  // The failure that the user is to read last; nothing when all went well.
  std::optional<Failure> failure;
  // The results that the ranks of this node have reported, by local rank: JSON, or empty.
  std::vector<std::string> results;
  // True if the job may do better when it is started again: a rank or a host has died, or a peer
  // was gone or late.
  bool can_restart = false;
  JobHistory history;  // as the launchers have agreed
  JobProgress progress;
};

// Blocks until all ranks of this node have ended and nothing of them is left. Their output goes to
// this process's: rank 0's as it is, that of the others line by line behind "[rank 1] ". SIGINT,
// SIGTERM and SIGHUP are passed on to the ranks once; a second one kills them. Every rank must end
// with an exit report through its Reporter, or, where that is optional, with status 0: one that
// does not has died.
//
// Throws UsageError when the command cannot be started, and RendezvousError when the port is in use
// or the other nodes do not come. Call it from one thread at a time, the one that lives longest:
// the ranks die with it (see LauncherWatch).
[[nodiscard]] LaunchResult run_ranks(const LaunchOptions& options);

}  // namespace troika
