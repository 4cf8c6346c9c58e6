#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/milliseconds.h>
#include <troika/base/process_stop.h>
#include <troika/base/signal_requests.h>
#include <troika/launch/agent.h>
#include <troika/launch/local_ranks.h>
#include <troika/launch/nodes.h>
#include <troika/launch/signals.h>
#include <troika/observe/machine.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

namespace troika {
namespace {

// What launchers tell each other of a signal, with the host behind it.
constexpr std::string_view kInterruptedOn = "interrupted on host ";

// One run, from the first rank's start to the last rank's end.
class Agent {
 public:
  explicit Agent(const LaunchOptions& options)
      : options_(options),
        nodes_(options.plan, options.version, Deadline::in(options.rendezvous_timeout),
               options.history, options.why_not_on),
        ranks_(on_nodes_that_came(), nodes_) {
    // Only ranks of other nodes ask: those of this one look for themselves.
    if (options_.plan.nodes > 1 && !options.recorders.empty())
      nodes_.serve_snapshots(options.recorders);
  }

  LaunchResult run() {
    while (ranks_.any_running()) {
      wait_for_something();
      act_on_deadlines();
    }
    ranks_.finish_output();
    return collect_result();
  }

 private:
  const LaunchOptions& on_nodes_that_came() {
    options_.plan = nodes_.plan();
    return options_;
  }

  // Sleeps until a rank, a signal, another node or a deadline needs us, and takes note.
  void wait_for_something() {
    std::vector<pollfd> watched = {{signals_.descriptor(), POLLIN, 0},
                                   {other_node_failed_ ? -1 : nodes_.descriptor(), POLLIN, 0}};
    ranks_.watch(watched);
    const int timeout = next_deadline_
                            ? poll_milliseconds(next_deadline_->left())
                            : -1;  // no work of ours is due: the ranks have their own deadlines
    if (poll(watched.data(), watched.size(), timeout) < 0) return;  // a signal: see the pipe
    while (const auto signal = signals_.take()) on_signal(*signal);
    if (watched[1].revents != 0) on_other_node();
    ranks_.handle_events(watched);
    if (const auto& failure = ranks_.failure()) begin_shutdown(*failure);
  }

  void on_signal(int signal) {
    if (signal == SIGTSTP) return stop_job();
    if (!requests_.is_new(signal)) return;
    // Asked twice, or asked while a failure is being dealt with: no more grace.
    const bool asked_before = ending_;
    interrupt_ranks(asked_before ? SIGKILL : signal);
    if (asked_before) return;
    signal_ = signal;
    nodes_.notify_nodes(peer_failure(std::string(kInterruptedOn) + host_name()));
  }

  // They may have something to save.
  void interrupt_ranks(int signal) {
    ranks_.mark_ending();
    ranks_.signal_all(signal);
    if (ending_) return;
    ending_ = terminated_ = true;
    next_deadline_ = Deadline::in(options_.interrupt_grace);
  }

  // Until the launcher is sent SIGCONT, as by the shell's fg. The terminal's signal has reached the
  // launcher alone: each rank has a process group of its own.
  void stop_job() {
    ranks_.stop_all();
    stop_process();
    ranks_.continue_all();
  }

  void on_other_node() {
    other_node_failed_ = true;
    const Failure reason = nodes_.stop_reason();
    if (!ending_ && reason.message.starts_with(kInterruptedOn)) {
      interrupt_ranks(SIGTERM);
    } else {
      begin_shutdown(reason);
    }
  }

  // The others get a moment to say what they saw, since it may be the cause.
  void begin_shutdown(const Failure& reason) {
    if (ending_) {
      hasten_end();
      return;
    }
    ending_ = true;
    nodes_.notify_ranks(reason);
    nodes_.notify_nodes(reason);
    next_deadline_ = Deadline::in(options_.report_time);
  }

  // What a rank was to save on a signal it cannot save without one that has failed.
  void hasten_end() {
    if (!next_deadline_ || next_deadline_->left() <= options_.grace) return;
    next_deadline_ = Deadline::in(options_.grace);
  }

  void act_on_deadlines() {
    if (!next_deadline_ || !next_deadline_->passed()) return;
    ranks_.mark_ending();
    ranks_.signal_all(terminated_ ? SIGKILL : SIGTERM);
    next_deadline_.reset();
    if (!terminated_) next_deadline_ = Deadline::in(options_.grace);
    terminated_ = true;
  }

  // What a rank says that has saved something on the signal, and hints at where; null: none has.
  [[nodiscard]] const Failure* interruption_of_ranks() const {
    for (const RankEnd& end : ranks_.ends()) {
      if (!end.report || !end.report->failure || end.report->failure->hint.empty()) continue;
      if (is_interruption(end.report->failure->code)) return &*end.report->failure;
    }
    return nullptr;
  }

  [[nodiscard]] std::optional<Cause> own_cause() const {
    const bool all_well = std::none_of(ranks_.ends().begin(), ranks_.ends().end(),
                                       [](const RankEnd& end) { return !ended_well(end); });
    if (signal_ && !all_well) {
      if (const Failure* told = interruption_of_ranks()) {
        return Cause{CauseKind::kInterrupted, 0, told->code, told->message, told->hint};
      }
      const std::string host = options_.plan.nodes > 1 ? " on host " + host_name() : "";
      const std::string how =
          *signal_ == SIGINT ? "" : " by SIG" + std::string(sigabbrev_np(*signal_));
      return Cause{CauseKind::kInterrupted, 0, ExitCode::kInterrupted, "interrupted" + how + host,
                   ""};
    }
    return first_cause(ranks_.ends(), host_name(), options_.plan.ranks);
  }

  LaunchResult collect_result() {
    const std::optional<Cause> mine = own_cause();
    if (options_.progress) nodes_.send_progress(options_.progress());
    // Nodes whose ranks did well may still wait for others that write the last files.
    const Seconds timeout = mine || ending_ ? options_.report_time + options_.grace + options_.grace
                                            : failure_timing::kNodesWhenWell;
    const auto cause = nodes_.agree_on_cause(mine, Deadline::in(timeout),
                                             [this] { return signals_.take().has_value(); });
    LaunchResult result;
    result.results = ranks_.results();
    result.history = nodes_.history();
    result.progress = nodes_.progress();
    if (!cause) return result;
    result.can_restart = may_not_recur(*cause) && !signal_;
    result.exit_code = static_cast<int>(cause->code);
    if (signal_ && cause->code == ExitCode::kInterrupted) result.exit_code = 128 + *signal_;
    result.failure = Failure{cause->code, cause->message, cause->hint, false};
    return result;
  }

  LaunchOptions options_;
  Nodes nodes_;
  SignalPipe signals_{options_.takes_signals};
  LocalRanks ranks_;
  bool ending_ = false;      // no rank will be let run on
  bool terminated_ = false;  // the ranks have been sent SIGTERM, or what the user sent
  bool other_node_failed_ = false;
  SignalRequests requests_;
  std::optional<int> signal_;  // that made us end
  std::optional<Deadline> next_deadline_;
};

}  // namespace

LaunchResult run_ranks(const LaunchOptions& options) {
  return Agent(options).run();
}

}  // namespace troika
