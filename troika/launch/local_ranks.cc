#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/time.h>
#include <troika/launch/local_ranks.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/observe/snapshot.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace troika {
namespace {

constexpr const char* kThreads = "OMP_NUM_THREADS";
constexpr std::size_t kLongestReport = std::size_t{64} << 20;

struct Ends {
  UniqueFd ours, theirs;
};

Ends make_pipe() {
  int ends[2];
  check(pipe2(ends, O_CLOEXEC) == 0, "no pipe for a rank's output");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A socket rather than a pipe, so that a rank whose launcher is gone gets an error and no signal.
Ends make_report_line() {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket for a report");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// torchrun's variables, so that a rank reads one set whoever has started it, and our own.
std::map<std::string, std::string> common_environment(const LaunchOptions& options,
                                                      const Nodes& nodes) {
  const LaunchPlan& plan = options.plan;
  const int cores = options.usable_cores > 0 ? options.usable_cores : usable_cores();
  std::map<std::string, std::string> variables = {
      {"WORLD_SIZE", std::to_string(plan.ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.ranks_per_node)},
      {"GROUP_RANK", std::to_string(plan.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(plan.nodes)},
      {"MASTER_ADDR", nodes.endpoint().host},
      {"MASTER_PORT", std::to_string(nodes.endpoint().port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", nodes.run_id()},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(nodes.history().restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TROIKA_LAUNCHER_PID", std::to_string(getpid())},
      {"TROIKA_REPORT_FD", std::to_string(kReportDescriptor)},
  };
  if (!std::getenv(kThreads)) {
    variables[kThreads] = std::to_string(threads_of_rank(cores, plan.ranks_per_node));
  }
  // A thread that spins while it waits for another takes the core that the other may need, and one
  // that sleeps at once is late when the other is quick: it looks for a few microseconds.
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT")) {
    variables["GOMP_SPINCOUNT"] = "1000";
  }
  // Groups of a rank start operations on its GPU from threads of their own: without this NCCL lets
  // them run in another order than they were started in.
  if (!std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) variables["NCCL_LAUNCH_ORDER_IMPLICIT"] = "1";
  if (!options.recorders.empty()) {
    variables["TROIKA_RECORDERS"] = std::filesystem::absolute(options.recorders).string();
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  return variables;
}

// More threads than cores would wait for each other.
void bind_to_cores(ChildSpec& spec, int local_rank, const LaunchOptions& options) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= options.cores.size() || options.cores[index].empty()) return;
  spec.cores = options.cores[index];
  if (std::getenv(kThreads)) return;
  std::string& threads = spec.environment[kThreads];
  threads = std::to_string(std::min(std::stoi(threads), static_cast<int>(spec.cores.size())));
}

bool is_ready(const std::vector<pollfd>& watched, int descriptor) {
  return descriptor >= 0 && std::any_of(watched.begin(), watched.end(), [&](const pollfd& one) {
           return one.fd == descriptor && one.revents != 0;
         });
}

}  // namespace

LocalRanks::LocalRanks(const LaunchOptions& options, const Nodes& nodes)
    : options_(options),
      environment_(common_environment(options, nodes)),
      report_policy_(options.report_policy),
      recorders_(options.recorders),
      started_(wall_nanoseconds()) {
  for (int local = 0; local < options.plan.ranks_per_node; ++local) start(local);
}

void LocalRanks::start(int local_rank) {
  const int rank = options_.plan.node_rank * options_.plan.ranks_per_node + local_rank;
  // Where they are expected, nobody reads the file, and a run may be refused that has one to keep.
  if (report_policy_ == ReportPolicy::kOptional) remove_saved_error(recorders_, rank);
  Ends report = make_report_line();
  ChildSpec spec{options_.command, environment_, 1, 2, report.theirs.get(), {}};
  bind_to_cores(spec, local_rank, options_);
  spec.guardian = guardian_.socket();
  spec.environment["RANK"] = std::to_string(rank);
  spec.environment["LOCAL_RANK"] = std::to_string(local_rank);
  const std::string prefix = rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  std::vector<LineRelay> relays;
  std::vector<UniqueFd> handed_over;  // until the child has them
  for (OutputSink* sink : {&output_, &error_}) {
    // Rank 0 draws its progress line on the terminal itself.
    if (rank == 0 && sink->is_terminal()) continue;
    Ends pipe = make_pipe();
    (sink == &output_ ? spec.standard_output : spec.standard_error) = pipe.theirs.get();
    relays.emplace_back(std::move(pipe.ours), *sink, prefix);
    handed_over.push_back(std::move(pipe.theirs));
  }
  processes_.push_back({rank, ChildProcess(spec), std::move(report.ours), "", std::nullopt, false,
                        std::move(relays)});
}

bool LocalRanks::any_running() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Process& process) { return process.child.running(); });
}

void LocalRanks::watch(std::vector<pollfd>& watched) const {
  for (const Process& process : processes_) {
    if (process.child.running()) watched.push_back({process.child.descriptor(), POLLIN, 0});
    if (process.report.valid()) watched.push_back({process.report.get(), POLLIN, 0});
    for (const LineRelay& relay : process.relays) {
      if (relay.open() && !relay.sink().is_full()) {
        watched.push_back({relay.descriptor(), POLLIN, 0});
      }
    }
  }
  for (const OutputSink* sink : {&output_, &error_}) {
    if (sink->has_pending()) watched.push_back({sink->descriptor(), POLLOUT, 0});
  }
}

void LocalRanks::handle_events(const std::vector<pollfd>& watched) {
  for (OutputSink* sink : {&output_, &error_}) {
    if (sink->has_pending() && is_ready(watched, sink->descriptor())) sink->write_some();
  }
  for (Process& process : processes_) {
    for (LineRelay& relay : process.relays) {
      if (relay.open() && is_ready(watched, relay.descriptor())) relay.read_some();
    }
    if (is_ready(watched, process.report.get())) read_report(process);
    if (process.child.running() && is_ready(watched, process.child.descriptor())) {
      record_end(process);
    }
  }
  // Not before: a descriptor of the new process may have the number of one that was watched.
  for (const int rank : std::exchange(to_start_, {})) {
    start(rank - options_.plan.node_rank * options_.plan.ranks_per_node);
  }
}

void LocalRanks::read_report(Process& process) {
  char buffer[16384];
  const ssize_t size = recv(process.report.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size > 0 && process.reported.size() < kLongestReport) {
    process.reported.append(buffer, static_cast<std::size_t>(size));
    if (process.reported.ends_with('\n')) parse_report(process);
  } else if (size >= 0 || (errno != EAGAIN && errno != EINTR)) {
    process.report.reset();
  }
}

void LocalRanks::parse_report(Process& process) {
  try {
    process.exit_report = decode_exit_report(process.reported);
  } catch (const DataError&) {
    return;  // not a report: the rank's end will speak for itself
  }
  process.ending_before_report = ending_;
  // What the job may survive shows when the rank ends.
  if (process.exit_report->failure && !failure_ &&
      !(options_.on_death && process.exit_report->failure->secondary)) {
    failure_ =
        failure_notice({process.rank, process.child.pid(), 0, process.exit_report}, host_name());
  }
}

void LocalRanks::record_end(Process& process) {
  const int status = process.child.reap();
  pollfd readable{process.report.get(), POLLIN, 0};
  while (process.report.valid() && poll(&readable, 1, 0) > 0) read_report(process);
  process.report.reset();
  const RankEnd end{process.rank,
                    process.child.pid(),
                    status,
                    process.exit_report,
                    process.exit_report ? process.ending_before_report : ending_,
                    report_policy_,
                    has_printed(process)};
  if (is_survived(end)) return;
  ends_.push_back(end);
  if (ended_well(ends_.back())) return;
  add_recorded_state(ends_.back());
  if (is_failure(ends_.back()) && !failure_) failure_ = failure_notice(ends_.back(), host_name());
}

// Errors of its own come again, and are the job's.
bool LocalRanks::is_survived(const RankEnd& end) {
  if (!options_.on_death || ending_ || failure_ || !is_failure(end)) return false;
  if (end.report && (!end.report->failure || !end.report->failure->secondary)) return false;
  const OnDeath then = options_.on_death(end.rank, deaths_[end.rank]++);
  if (then == OnDeath::kJobEnds) return false;
  const bool starts = then == OnDeath::kRankStartsAgain;
  log_warning(failure_notice(end, host_name()).message +
              (starts ? "; it is started again" : "; the job goes on without it"));
  if (starts) to_start_.push_back(end.rank);
  return true;
}

bool LocalRanks::has_printed(const Process& process) {
  constexpr std::size_t kStreams = 2;
  return process.relays.size() < kStreams ||
         std::ranges::any_of(process.relays, &LineRelay::has_anything);
}

void LocalRanks::add_recorded_state(RankEnd& end) const {
  if (recorders_.empty()) return;
  const auto snapshot = take_snapshot(recorder_path(recorders_, end.rank));
  if (snapshot && snapshot->recording.created >= started_)
    end.last_operation = describe_last_operation(*snapshot);
  end.error = read_saved_error(recorders_, end.rank);
}

void LocalRanks::signal_all(int number) {
  for (const Process& process : processes_) process.child.signal(number);
  continue_all();  // one that is stopped would not get it
}

void LocalRanks::stop_all() {
  const Deadline deadline = Deadline::in(failure_timing::kStop);
  for (const Process& process : processes_) process.child.signal(SIGTSTP);
  for (const Process& process : processes_) {
    // A program may ignore SIGTSTP, but not this.
    if (!process.child.stops_by(deadline)) process.child.signal(SIGSTOP);
  }
}

void LocalRanks::continue_all() {
  for (const Process& process : processes_) process.child.signal(SIGCONT);
}

void LocalRanks::finish_output() {
  const Deadline deadline = Deadline::in(failure_timing::kOutputFlush);
  for (Process& process : processes_) {
    for (LineRelay& relay : process.relays) relay.finish();
  }
  // A rank that ended in the middle of its work has left its progress line as it was.
  if (!std::all_of(ends_.begin(), ends_.end(), ended_well)) error_.clear_line();
  output_.flush(deadline);
  error_.flush(deadline);
}

std::vector<std::string> LocalRanks::results() const {
  std::vector<std::string> results(static_cast<std::size_t>(options_.plan.ranks_per_node));
  const int first = processes_.front().rank;
  for (const RankEnd& end : ends_) {
    if (end.report) results[static_cast<std::size_t>(end.rank - first)] = end.report->result;
  }
  return results;
}

}  // namespace troika
