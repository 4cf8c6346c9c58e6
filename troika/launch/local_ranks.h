// The processes of this node's ranks with everything that belongs to them: their output, their exit
// reports, and how they ended. No decisions: those are the agent's.
#pragma once

#include <troika/launch/agent.h>
#include <troika/launch/child_process.h>
#include <troika/launch/group_guardian.h>
#include <troika/launch/nodes.h>
#include <troika/launch/output.h>
#include <troika/launch/root_cause.h>

#include <poll.h>

#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace troika {

class LocalRanks {
 public:
  // Starts the ranks, which meet at the store of `nodes`. Throws UsageError when the command cannot
  // be started; none is left then.
  LocalRanks(const LaunchOptions& options, const Nodes& nodes);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  [[nodiscard]] bool any_running() const;

  // Adds what to wait for to `watched`; handle_events() then reads what is ready, of the same
  // vector.
  void watch(std::vector<pollfd>& watched) const;
  void handle_events(const std::vector<pollfd>& watched);

  // Returns the ends of the ranks, in the order in which they ended.
  [[nodiscard]] const std::vector<RankEnd>& ends() const { return ends_; }
  // Returns the notice (see failure_notice()) of the first rank that has reported a failure, even
  // if it has yet to end, or that has ended badly.
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  // Records that ends from now on are the launcher's doing.
  void mark_ending() { ending_ = true; }
  // Sends a signal to all ranks, including those that are stopped.
  void signal_all(int number);
  // Stops all ranks, and returns once they are stopped, within a second or so.
  void stop_all();
  void continue_all();

  // Forwards the rest of the ranks' output once all have ended, and leaves a clean line to go on
  // at.
  void finish_output();
  // Returns the results that the ranks have reported, by local rank.
  [[nodiscard]] std::vector<std::string> results() const;

 private:
  struct Process {
    int rank;
    ChildProcess child;
    UniqueFd report;
    std::string reported;
    std::optional<ExitReport> exit_report;
    bool ending_before_report;
    std::vector<LineRelay> relays;
  };

  void start(int local_rank);
  // Returns whether the job goes on although this rank has ended so; then it has been seen to.
  bool is_survived(const RankEnd& end);
  void read_report(Process& process);
  void parse_report(Process& process);
  void record_end(Process& process);
  static bool has_printed(const Process& process);
  // Adds to an end what is found beside the rank's flight recorder.
  void add_recorded_state(RankEnd& end) const;

  LaunchOptions options_;
  std::map<std::string, std::string> environment_;
  std::map<int, int> deaths_;  // by rank
  std::vector<int> to_start_;  // ranks
  ReportPolicy report_policy_;
  std::filesystem::path recorders_;
  // The start of this job. What was written before is of another job.
  std::int64_t started_;  // ns since 1970
  OutputSink output_{1}, error_{2};
  GroupGuardian guardian_;  // outlives the processes
  std::list<Process> processes_;
  std::vector<RankEnd> ends_;
  std::optional<Failure> failure_;
  bool ending_ = false;
};

}  // namespace troika
