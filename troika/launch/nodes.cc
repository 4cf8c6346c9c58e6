#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/launch/nodes.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/loopback.h>
#include <troika/rendezvous/snapshots.h>
#include <troika/rendezvous/store_connections.h>
#include <troika/rendezvous/wait_notice.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

namespace troika {
namespace {

constexpr std::string_view kFine = "fine";

// What launchers say to each other is under `what` and the number of the node.
std::string key_of(std::string_view what, int node) {
  return "launchers/" + std::string(what) + "/" + std::to_string(node);
}

// The last that a launcher says to the others: it has read what became of them all.
constexpr std::string_view kRead = "read";
constexpr std::string_view kHistory = "history";
constexpr std::string_view kClaims = "claims";
// Node 0 notices within this time that another launcher has been killed.
constexpr Seconds kNoticeTime{10};
constexpr const char* kProgress = "launchers/progress";
// The nodes that the job goes on with, where it starts again.
constexpr const char* kMembers = "launchers/members";
// How long a launcher waits for node 0 after its own deadline: node 0 may have begun to wait later.
constexpr Seconds kDecisionTime{10};
// What a node has in the place of its terms that cannot begin, with the failure behind it.
constexpr std::string_view kCannotBegin = "cannot begin\n";
// Nobody was asked whether the job can go on with fewer nodes.
constexpr const char* kNotAsked = "-";
// The ranks of a node have ended, and with them the job.
constexpr const char* kEnded = "launchers/ended";

std::string two_numbers(std::int64_t first, std::int64_t second) {
  return std::to_string(first) + " " + std::to_string(second);
}

std::pair<std::int64_t, std::int64_t> read_two_numbers(const std::string& text) {
  std::istringstream stream(text);
  std::pair<std::int64_t, std::int64_t> numbers;
  if (stream >> numbers.first >> numbers.second) return numbers;
  throw DataError("a launcher's word is malformed: " + quote(text));
}

std::string encode(const JobHistory& history) {
  return two_numbers(history.restarts, history.reached) + " " + std::to_string(history.checkpoint);
}

JobHistory decode_history(const std::string& text) {
  std::istringstream stream(text);
  JobHistory history;
  if (stream >> history.restarts >> history.reached >> history.checkpoint) return history;
  throw DataError("a launcher's word is malformed: " + quote(text));
}

std::string encode(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

std::vector<int> decode_numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<int> numbers;
  for (int number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

// Whether the job has gone on without a node.
bool is_left_out(Store& store, int node) {
  if (!store.is_set(kMembers)) return false;
  return std::ranges::count(decode_numbers(store.get_all({kMembers}).front()), node) == 0;
}

// Where jobs follow each other at one endpoint, a launcher may come back before node 0's has closed
// the store of the job before. It waits for that to go. It may even come before node 0 has noticed
// that the launcher before it was killed.
Store connect_to_new_job(const Endpoint& endpoint, int node, const Deadline& deadline) {
  for (;;) {
    Store store = Store::connect(endpoint, deadline);
    std::string what =
        "the store there is that of a job that node " + std::to_string(node) + " has ended";
    try {
      const bool left_out = is_left_out(store, node);
      if (left_out) what = "the job there has gone on without node " + std::to_string(node);
      const bool is_over = left_out || store.is_set(kEnded) || store.is_set(key_of(kRead, node));
      if (!is_over) {
        if (!store.is_set(key_of(kClaims, node))) return store;
        const Deadline notice = Deadline::in(std::min(kNoticeTime, deadline.left()));
        if (!store.wait({kEnded}, notice)) return store;  // there are two, and join_nodes() says so
      }
      constexpr const char* kNeverSet = "launchers/over";
      (void)store.wait({kNeverSet}, deadline);
    } catch (const PeerError&) {
      continue;  // it has gone
    }
    throw RendezvousError("no rendezvous at " + endpoint.describe() + " after " +
                              format_fixed(deadline.timeout().count(), 1) + " s (" + what + ")",
                          "does the launcher of that job's node 0 still run?");
  }
}

Store open_store(const LaunchPlan& plan, const Deadline& deadline) {
  if (plan.node_rank > 0) return connect_to_new_job(*plan.rendezvous, plan.node_rank, deadline);
  const bool alone = !plan.rendezvous || names_loopback(plan.rendezvous->host);
  constexpr int kOfEachRank = 4;  // its output, its report and its end
  reserve_store_connections(plan.ranks, kOfEachRank * plan.ranks_per_node, "the launcher of ");
  return Store::host(plan.rendezvous ? plan.rendezvous->port : std::uint16_t{0},
                     alone ? Reach::kThisHost : Reach::kEveryHost);
}

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return host_name() + "-" + std::to_string(getpid()) + "-" + std::to_string(now.count());
}

// What the launcher of `node` has said. What cannot be read is told below every cause that can.
Cause cause_of(const std::string& text, int node) {
  try {
    return decode_cause(text);
  } catch (const DataError& error) {
    return {CauseKind::kLost, node, ExitCode::kRankDied,
            "node " + std::to_string(node) + " has failed, and why cannot be read: " + error.what(),
            "its last lines, on that host, may say why"};
  }
}

std::string named_nodes(const std::vector<int>& nodes, int of) {
  return (nodes.size() == 1 ? "node " : "nodes ") + list_ranks(nodes) + " of " + std::to_string(of);
}

// What all launchers must have in common.
std::string terms(const LaunchPlan& plan, const std::string& version) {
  return "--nodes " + std::to_string(plan.nodes) + " --ranks-per-node " +
         std::to_string(plan.ranks_per_node) + ", troika " + version;
}

}  // namespace

Nodes::Nodes(const LaunchPlan& plan, const std::string& version, const Deadline& deadline,
             const JobHistory& history, const WhyNotOn& why_not_on)
    : plan_(plan),
      own_(plan.node_rank),
      asked_(plan.nodes),
      members_(static_cast<std::size_t>(plan.nodes)),
      history_(history),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(wake_.valid(), "no eventfd for the launcher");
  std::iota(members_.begin(), members_.end(), 0);
  store_ = open_store(plan, deadline);
  endpoint_ = {plan.rendezvous ? plan.rendezvous->host : "127.0.0.1", store_->endpoint().port};
  if (plan.nodes > 1) {
    join_nodes(version, deadline, why_not_on);
    watch();
  } else {
    run_id_ = new_run_id();
  }
}

void Nodes::report_failure(const LaunchPlan& plan, const Failure& failure,
                           const Deadline& deadline) {
  if (plan.nodes == 1) return;
  Failure told = failure;
  told.message =
      "node " + std::to_string(plan.node_rank) + " on host " + host_name() + ": " + told.message;
  Store store = open_store(plan, deadline);
  if (store.add(key_of(kClaims, plan.node_rank), 1) > 1) return;
  store.set(key_of(kHistory, plan.node_rank), encode(JobHistory()));
  store.set(key_of("terms", plan.node_rank), std::string(kCannotBegin) + encode(told));
  store.set(key_of(kRead, plan.node_rank), "");
  if (plan.node_rank > 0) return;
  // The store ends with this process: the others are to read from it first.
  std::vector<int> all(static_cast<std::size_t>(plan.nodes));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::string> terms, read;
  for (const int node : all) {
    terms.push_back(key_of("terms", node));
    read.push_back(key_of(kRead, node));
  }
  if (!store.wait(terms, deadline)) return;
  store.set(kMembers, encode(all));
  (void)store.wait(read, Deadline::in(failure_timing::kReadBeforeStoreGoes));
}

Store Nodes::job_store() const {
  return store_->with_prefix(key_prefix(elastic_job(run_id_, std::to_string(history_.restarts))));
}

void Nodes::serve_snapshots(const std::filesystem::path& recorders) {
  Store job = job_store();
  responder_.emplace(job, plan_.node_rank, plan_.node_rank * plan_.ranks_per_node,
                     plan_.ranks_per_node, recorders);
  if (plan_.node_rank == 0) offer_snapshots(job, plan_.nodes);
}

std::vector<std::string> Nodes::keys(std::string_view what) const {
  std::vector<std::string> keys;
  for (const int node : members_) keys.push_back(key_of(what, node));
  return keys;
}

// The nodes that have not set their key.
std::vector<int> Nodes::without(std::string_view what) {
  std::vector<int> nodes;
  for (const int node : members_) {
    if (!store_->is_set(key_of(what, node))) nodes.push_back(node);
  }
  return nodes;
}

void Nodes::join_nodes(const std::string& version, const Deadline& deadline,
                       const WhyNotOn& why_not_on) {
  if (own_ == 0) store_->set("launchers/run", new_run_id());
  if (store_->add(key_of(kClaims, own_), 1) > 1) {
    throw RendezvousError("two launchers claim to be node " + std::to_string(own_) + " at " +
                              endpoint_.describe() + "; this one is on host " + host_name(),
                          "give each host its own --node-rank");
  }
  store_->set(key_of(kHistory, own_), encode(history_));
  store_->set(key_of("terms", own_), terms(plan_, version));
  if (!wait_for_nodes(deadline)) {
    const std::vector<int> missing = without("terms");
    const std::string against = go_on_with_fewer(why_not_on);
    if (!against.empty()) {
      throw RendezvousError(named_nodes(missing, asked_) +
                                (missing.size() == 1 ? " has" : " have") + " not come to " +
                                endpoint_.describe() + " after " +
                                format_fixed(deadline.timeout().count(), 0) + " s" +
                                (against == kNotAsked ? "" : against),
                            "start the same command there, with its own --node-rank");
    }
  }
  check_terms();
  agree_on_history();
  run_id_ = store_->get("launchers/run", deadline);
}

// Whether all have come, or those that node 0 goes on with. A launcher that has come back does not
// know that this is a later start, on which node 0 may decide before its own deadline.
bool Nodes::wait_for_nodes(const Deadline& deadline) {
  const auto missing = [&] {
    return named_nodes(without("terms"), asked_) + " to come to " + endpoint_.describe();
  };
  if (own_ == 0) {
    const bool all = wait_with_notice(*store_, keys("terms"), deadline, missing);
    if (all) send_members(encode(members_));
    return all;
  }
  if (!wait_with_notice(*store_, {kMembers}, deadline, missing)) return false;
  const std::string decided = store_->get_all({kMembers}).front();
  if (decided.empty()) return false;
  take_members(decided);
  return true;
}

bool Nodes::is_restart() {
  return std::ranges::any_of(members_, [&](int node) {
    const std::string key = key_of(kHistory, node);
    return store_->is_set(key) && decode_history(store_->get_all({key}).front()).restarts > 0;
  });
}

// It is the word of node 0 that counts, which keeps the store.
std::string Nodes::go_on_with_fewer(const WhyNotOn& why_not_on) {
  if (!is_restart() || !why_not_on) return kNotAsked;
  if (own_ > 0) {
    if (!store_->wait({kMembers}, Deadline::in(kDecisionTime))) return kNotAsked;
    const std::string decided = store_->get_all({kMembers}).front();
    if (decided.empty()) return kNotAsked;
    take_members(decided);
    return "";
  }
  std::vector<int> came;
  const std::vector<int> missing = without("terms");
  std::ranges::set_difference(members_, missing, std::back_inserter(came));
  LaunchPlan fewer = plan_;
  fewer.nodes = static_cast<int>(came.size());
  fewer.ranks = fewer.nodes * fewer.ranks_per_node;
  const std::string against = why_not_on(fewer);
  send_members(against.empty() ? encode(came) : "");
  if (!against.empty()) return "; the others cannot go on alone: " + against;
  log_warning(named_nodes(missing, asked_) + (missing.size() == 1 ? " has" : " have") +
              " not come back: going on with " + plural(fewer.ranks, "rank") + " of " +
              std::to_string(plan_.ranks));
  take_members(encode(came));
  return "";
}

void Nodes::send_members(const std::string& text) {
  store_->set(kMembers, text);
}

void Nodes::take_members(const std::string& text) {
  members_ = decode_numbers(text);
  const auto own = std::ranges::find(members_, own_);
  if (own == members_.end()) {
    throw RendezvousError("the job at " + endpoint_.describe() + " has gone on without node " +
                              std::to_string(own_) + ", which came late",
                          "start the same command again: it takes part from the next start on");
  }
  plan_.nodes = static_cast<int>(members_.size());
  plan_.node_rank = static_cast<int>(own - members_.begin());
  plan_.ranks = plan_.nodes * plan_.ranks_per_node;
}

void Nodes::check_terms() {
  const std::vector<std::string> all = store_->get_all(keys("terms"));
  // The other launchers are to read this too, before the store goes with node 0.
  const auto let_others_read = [&] {
    store_->set(key_of(kRead, own_), "");
    if (own_ == 0)
      (void)store_->wait(keys(kRead), Deadline::in(failure_timing::kReadBeforeStoreGoes));
  };
  for (const std::string& each : all) {
    if (!each.starts_with(kCannotBegin)) continue;
    let_others_read();
    throw_failure(decode_failure(each.substr(kCannotBegin.size())));
  }
  for (std::size_t node = 1; node < all.size(); ++node) {
    if (all[node] == all[0]) continue;
    let_others_read();
    throw RendezvousError("node " + std::to_string(members_[node]) +
                              " disagrees with node 0: it has " + all[node] + ", node 0 has " +
                              all[0],
                          "start all nodes with the same flags and the same version");
  }
}

// A launcher that has come back after its host was gone knows of no start before.
void Nodes::agree_on_history() {
  for (const std::string& text : store_->get_all(keys(kHistory))) {
    const JobHistory theirs = decode_history(text);
    if (theirs.restarts > history_.restarts) history_ = theirs;
  }
}

void Nodes::send_progress(const JobProgress& progress) {
  progress_ = progress;
  if (asked_ == 1 || own_ > 0) return;
  try {
    store_->set(kProgress, two_numbers(progress.step, progress.checkpoint));
  } catch (const PeerError&) {
    store_is_gone_ = true;
  }
}

void Nodes::read_progress() {
  if (own_ == 0 || !store_->is_set(kProgress)) return;
  const auto [step, checkpoint] = read_two_numbers(store_->get_all({kProgress}).front());
  progress_ = {step, checkpoint};
}

void Nodes::watch() {
  const auto wake = [this](const Failure& reason) {
    {
      const std::lock_guard lock(mutex_);
      stop_reason_ = reason;
    }
    eventfd_write(wake_.get(), 1);
  };
  watch_ = std::make_unique<StoreWatch>(
      *store_, key_of("stop", own_),
      [wake](const std::string& told) { wake(decode_failure(told)); },
      [this, wake](const std::string&) { wake(peer_failure(launcher_of_node_0() + " is gone")); });
}

std::string Nodes::launcher_of_node_0() const {
  return "the launcher of node 0 at " + endpoint_.describe();
}

Failure Nodes::stop_reason() const {
  const std::lock_guard lock(mutex_);
  return stop_reason_.value_or(Failure());
}

void Nodes::notify_ranks(const Failure& reason) {
  try {
    Store store = job_store();
    for (int local = 0; local < plan_.ranks_per_node; ++local) {
      store.set(abort_key(plan_.node_rank * plan_.ranks_per_node + local), encode(reason));
    }
  } catch (const PeerError&) {
    store_is_gone_ = true;  // agree_on_cause() says so
  }
}

void Nodes::notify_nodes(const Failure& reason) {
  try {
    for (const int node : members_) {
      if (node != own_) store_->set(key_of("stop", node), encode(reason));
    }
  } catch (const PeerError&) {
    store_is_gone_ = true;
  }
}

std::optional<Cause> Nodes::agree_on_cause(const std::optional<Cause>& mine,
                                           const Deadline& deadline,
                                           const Interrupted& interrupted) {
  if (asked_ == 1) return mine;
  std::vector<Cause> causes;
  try {
    if (!store_is_gone_) {
      store_->set(kEnded, "");
      causes = exchange(mine, deadline, interrupted);
    }
  } catch (const PeerError&) {
    store_is_gone_ = true;
  }
  if (store_is_gone_) {
    causes.push_back({CauseKind::kLost, 0, ExitCode::kRankDied, launcher_of_node_0() + " is gone",
                      "its last lines, on that host, may say why"});
    if (mine) causes.push_back(*mine);
  }
  if (causes.empty()) return std::nullopt;
  return first_of(causes);
}

std::vector<Cause> Nodes::exchange(std::optional<Cause> mine, const Deadline& deadline,
                                   const Interrupted& interrupted) {
  if (mine) mine->order = store_->add("launchers/order", 1);
  store_->set(key_of("outcome", own_), mine ? encode(*mine) : std::string(kFine));
  bool all_said = false;
  while (!all_said && !deadline.passed() && !interrupted()) {
    all_said = store_->wait(keys("outcome"),
                            Deadline::in(std::min(failure_timing::kNodesTurn, deadline.left())));
  }
  std::vector<Cause> causes;
  for (const int node : members_) {
    if (store_->is_set(key_of("outcome", node))) {
      const std::string text = store_->get_all({key_of("outcome", node)}).front();
      if (text != kFine) causes.push_back(cause_of(text, node));
    } else {
      causes.push_back({CauseKind::kLost, node, ExitCode::kRankDied,
                        "node " + std::to_string(node) + " of " + std::to_string(asked_) +
                            " does not answer: its launcher or its machine is gone",
                        "its last lines, on that host, may say why"});
    }
  }
  read_progress();
  store_->set(key_of(kRead, own_), "");
  if (own_ == 0)
    (void)store_->wait(keys(kRead), Deadline::in(failure_timing::kReadBeforeStoreGoes));
  return causes;
}

}  // namespace troika
