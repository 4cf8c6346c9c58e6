#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/units.h>
#include <troika/launch/nodes.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/snapshots.h>
#include <troika/rendezvous/store_connections.h>
#include <troika/rendezvous/wait_notice.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace troika {
namespace {

constexpr std::string_view kFine = "fine";

bool is_loopback(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost";
}

// What launchers say to each other is under `what` and the number of the node.
std::string key_of(std::string_view what, int node) {
  return "launchers/" + std::string(what) + "/" + std::to_string(node);
}

// The last that a launcher says to the others: it has read what became of them all.
constexpr std::string_view kRead = "read";

// Where jobs follow each other at one endpoint, a launcher may come back before node 0's has closed
// the store of the job before. It waits for that to go.
Store connect_to_new_job(const Endpoint& endpoint, int node, const Deadline& deadline) {
  for (;;) {
    Store store = Store::connect(endpoint, deadline);
    try {
      if (!store.is_set(key_of(kRead, node))) return store;
      constexpr const char* kNeverSet = "launchers/over";
      (void)store.wait({kNeverSet}, deadline);
    } catch (const PeerError&) {
      continue;  // it has gone
    }
    throw RendezvousError("no rendezvous at " + endpoint.describe() + " after " +
                              format_fixed(deadline.timeout().count(), 1) +
                              " s (the store there is that of a job that node " +
                              std::to_string(node) + " has ended)",
                          "does the launcher of that job's node 0 still run?");
  }
}

Store open_store(const LaunchPlan& plan, const Deadline& deadline) {
  if (plan.node_rank > 0) return connect_to_new_job(*plan.rendezvous, plan.node_rank, deadline);
  const bool alone = !plan.rendezvous || is_loopback(plan.rendezvous->host);
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

// What all launchers must have in common.
std::string terms(const LaunchPlan& plan, const std::string& version) {
  return "--nodes " + std::to_string(plan.nodes) + " --ranks-per-node " +
         std::to_string(plan.ranks_per_node) + ", troika " + version;
}

}  // namespace

Nodes::Nodes(const LaunchPlan& plan, const std::string& version, const Deadline& deadline)
    : plan_(plan), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(wake_.valid(), "no eventfd for the launcher");
  store_ = open_store(plan, deadline);
  endpoint_ = {plan.rendezvous ? plan.rendezvous->host : "127.0.0.1", store_->endpoint().port};
  if (plan.nodes > 1) {
    join_nodes(version, deadline);
    watch();
  } else {
    run_id_ = new_run_id();
  }
}

Store Nodes::job_store() const {
  return store_->with_prefix(key_prefix(elastic_job(run_id_, "0")));
}

void Nodes::serve_snapshots(const std::filesystem::path& recorders) {
  Store job = job_store();
  responder_.emplace(job, plan_.node_rank, plan_.node_rank * plan_.ranks_per_node,
                     plan_.ranks_per_node, recorders);
  if (plan_.node_rank == 0) offer_snapshots(job, plan_.nodes);
}

std::vector<std::string> Nodes::keys(std::string_view what) const {
  std::vector<std::string> keys;
  for (int node = 0; node < plan_.nodes; ++node) keys.push_back(key_of(what, node));
  return keys;
}

// The nodes that have not set their key.
std::vector<int> Nodes::without(std::string_view what) {
  std::vector<int> nodes;
  for (int node = 0; node < plan_.nodes; ++node) {
    if (!store_->is_set(key_of(what, node))) nodes.push_back(node);
  }
  return nodes;
}

void Nodes::join_nodes(const std::string& version, const Deadline& deadline) {
  const std::string own = terms(plan_, version), who = "node " + std::to_string(plan_.node_rank);
  if (plan_.node_rank == 0) store_->set("launchers/run", new_run_id());
  if (store_->add(key_of("claims", plan_.node_rank), 1) > 1) {
    throw RendezvousError("two launchers claim to be " + who + " at " + endpoint_.describe() +
                              "; this one is on host " + host_name(),
                          "give each host its own --node-rank");
  }
  store_->set(key_of("terms", plan_.node_rank), own);
  const auto name_missing = [&](const std::vector<int>& nodes) {
    return (nodes.size() == 1 ? "node " : "nodes ") + list_ranks(nodes) + " of " +
           std::to_string(plan_.nodes);
  };
  if (!wait_with_notice(*store_, keys("terms"), deadline, [&] {
        return name_missing(without("terms")) + " to come to " + endpoint_.describe();
      })) {
    const std::vector<int> missing = without("terms");
    const bool one = missing.size() == 1;
    throw RendezvousError(name_missing(missing) + (one ? " has" : " have") + " not come to " +
                              endpoint_.describe() + " after " +
                              format_fixed(deadline.timeout().count(), 0) + " s",
                          "start the same command there, with its own --node-rank");
  }
  check_terms();
  run_id_ = store_->get("launchers/run", deadline);
}

void Nodes::check_terms() {
  const std::vector<std::string> all = store_->get_all(keys("terms"));
  for (std::size_t node = 1; node < all.size(); ++node) {
    if (all[node] == all[0]) continue;
    // The other launchers are to read this too, before the store goes with node 0.
    store_->set(key_of(kRead, plan_.node_rank), "");
    if (plan_.node_rank == 0)
      (void)store_->wait(keys(kRead), Deadline::in(failure_timing::kReadBeforeStoreGoes));
    throw RendezvousError("node " + std::to_string(node) + " disagrees with node 0: it has " +
                              all[node] + ", node 0 has " + all[0],
                          "start all nodes with the same flags and the same version");
  }
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
      *store_, key_of("stop", plan_.node_rank),
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
    for (int node = 0; node < plan_.nodes; ++node) {
      if (node != plan_.node_rank) store_->set(key_of("stop", node), encode(reason));
    }
  } catch (const PeerError&) {
    store_is_gone_ = true;
  }
}

std::optional<Cause> Nodes::agree_on_cause(const std::optional<Cause>& mine,
                                           const Deadline& deadline,
                                           const Interrupted& interrupted) {
  if (plan_.nodes == 1) return mine;
  std::vector<Cause> causes;
  try {
    if (!store_is_gone_) causes = exchange(mine, deadline, interrupted);
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
  store_->set(key_of("outcome", plan_.node_rank), mine ? encode(*mine) : std::string(kFine));
  bool all_said = false;
  while (!all_said && !deadline.passed() && !interrupted()) {
    all_said = store_->wait(keys("outcome"),
                            Deadline::in(std::min(failure_timing::kNodesTurn, deadline.left())));
  }
  std::vector<Cause> causes;
  for (int node = 0; node < plan_.nodes; ++node) {
    if (store_->is_set(key_of("outcome", node))) {
      const std::string text = store_->get_all({key_of("outcome", node)}).front();
      if (text != kFine) causes.push_back(cause_of(text, node));
    } else {
      causes.push_back({CauseKind::kLost, node, ExitCode::kRankDied,
                        "node " + std::to_string(node) + " of " + std::to_string(plan_.nodes) +
                            " does not answer: its launcher or its machine is gone",
                        "its last lines, on that host, may say why"});
    }
  }
  store_->set(key_of(kRead, plan_.node_rank), "");
  if (plan_.node_rank == 0)
    (void)store_->wait(keys(kRead), Deadline::in(failure_timing::kReadBeforeStoreGoes));
  return causes;
}

}  // namespace troika
