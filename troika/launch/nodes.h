// Exchanges messages between the launchers of a job's nodes, through the store that node 0's keeps.
// A job on one node has the store as well, for its ranks.
#pragma once

#include <troika/launch/history.h>
#include <troika/launch/options.h>
#include <troika/launch/root_cause.h>
#include <troika/launch/snapshot_responder.h>
#include <troika/rendezvous/store_watch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika {

class Nodes {
 public:
  using Interrupted = std::function<bool()>;
  using WhyNotOn = std::function<std::string(const LaunchPlan& fewer)>;

  // Collective among the launchers. Throws RendezvousError when the port is in use, when node 0
  // cannot be reached, when nodes do not come (naming them) or do not agree on the plan.
  // `history` is as far as this launcher knows it. Where a job starts again, node 0 may decide to
  // go on without nodes that do not come, if `why_not_on` has nothing against it (LaunchOptions).
  Nodes(const LaunchPlan& plan, const std::string& version, const Deadline& deadline,
        const JobHistory& history = {}, const WhyNotOn& why_not_on = {});

  // Tells the launchers of the other nodes, which wait for this one, why it cannot begin: theirs
  // throw that failure, with the number and the host of this node. Returns once node 0 has told
  // them, or at the deadline. Throws RendezvousError, PeerError where there is no such job.
  static void report_failure(const LaunchPlan& plan, const Failure& failure,
                             const Deadline& deadline);

  // Returns the plan of the nodes that have come, in which they are numbered anew.
  [[nodiscard]] const LaunchPlan& plan() const { return plan_; }

  // Returns the endpoint at which the ranks of this node find the store.
  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }
  // Returns an identifier that no other launch has.
  [[nodiscard]] const std::string& run_id() const { return run_id_; }

  // Returns the history of a launcher that has been there for the most starts.
  [[nodiscard]] const JobHistory& history() const { return history_; }

  // Tells the others how far the job has come. Node 0's word counts: rank 0, which writes the files
  // of a run, is there. Call it before agree_on_cause().
  void send_progress(const JobProgress& progress);
  // Returns what node 0 has told, after agree_on_cause(); what this one has told where node 0 is
  // gone.
  [[nodiscard]] const JobProgress& progress() const { return progress_; }

  // Returns a descriptor that is readable once another node has failed or is gone.
  [[nodiscard]] int descriptor() const { return wake_.get(); }
  // Returns the reason, once that is readable: the failure that the node sent to the launchers.
  [[nodiscard]] Failure stop_reason() const;

  // Starts to answer requests for what the ranks of this node are doing, as their flight recorders
  // in `recorders` say.
  void serve_snapshots(const std::filesystem::path& recorders);

  // Notify the ranks of this node (see abort_key), and the other launchers, that the job is over.
  void notify_ranks(const Failure& reason);
  void notify_nodes(const Failure& reason);

  // Exchanges what became of each node, and returns the first cause among all; nothing when all
  // went well. Collective, once the ranks of this node have ended. A node that does not answer by
  // the deadline is a cause as well. `interrupted` is asked now and then, and ends the wait.
  [[nodiscard]] std::optional<Cause> agree_on_cause(const std::optional<Cause>& mine,
                                                    const Deadline& deadline,
                                                    const Interrupted& interrupted);

 private:
  void join_nodes(const std::string& version, const Deadline& deadline, const WhyNotOn& why_not_on);
  [[nodiscard]] bool wait_for_nodes(const Deadline& deadline);
  // Returns whether the job has been started before, as the nodes that have come know.
  [[nodiscard]] bool is_restart();
  // Decides on node 0, and receives on others, which nodes the job goes on with. Returns why the
  // job cannot go on with these nodes, or an empty string.
  [[nodiscard]] std::string go_on_with_fewer(const WhyNotOn& why_not_on);
  void send_members(const std::string& text);
  void take_members(const std::string& text);
  void check_terms();
  void agree_on_history();
  void read_progress();
  void watch();
  [[nodiscard]] std::string launcher_of_node_0() const;
  // The keys that the ranks see.
  [[nodiscard]] Store job_store() const;
  [[nodiscard]] std::vector<std::string> keys(std::string_view what) const;
  [[nodiscard]] std::vector<int> without(std::string_view what);
  [[nodiscard]] std::vector<Cause> exchange(std::optional<Cause> mine, const Deadline& deadline,
                                            const Interrupted& interrupted);

  LaunchPlan plan_;
  // Numbers as on the command line, by which launchers call each other.
  int own_;
  int asked_;  // how many there should be
  std::vector<int> members_;
  Endpoint endpoint_;
  std::string run_id_;
  JobHistory history_;
  JobProgress progress_;
  UniqueFd wake_;
  std::optional<Store> store_;
  bool store_is_gone_ = false;
  mutable std::mutex mutex_;
  std::optional<Failure> stop_reason_;  // guarded by the mutex: the watch has a thread of its own
  std::unique_ptr<StoreWatch> watch_;   // only with several nodes; uses wake_ and store_
  std::optional<SnapshotResponder> responder_;
};

}  // namespace troika
