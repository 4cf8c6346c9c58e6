// Starts the ranks of this host, watches them, and ends them: all together, within seconds, and
// with one root cause to tell, whatever happens to any of them.
#pragma once

#include <troika/base/failure_timing.h>
#include <troika/launch/options.h>
#include <troika/launch/root_cause.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct LaunchOptions {
  LaunchPlan plan;
  std::vector<std::string> command;                // of a rank
  std::map<std::string, std::string> environment;  // of the ranks, on top of ours and torchrun's
  std::string version;                             // of troika; all nodes must have the same
  int usable_cores = 0;                            // of this host; 0: find out
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
};

struct LaunchResult {
  // The exit status: 0, the code of the root cause, or 128 + the signal that asked the launcher to
  // end.
  int exit_code = 0;
  // The failure that the user is to read last; nothing when all went well.
  std::optional<Failure> failure;
  // The results that the ranks of this node have reported, by local rank: JSON, or empty.
  std::vector<std::string> results;
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
