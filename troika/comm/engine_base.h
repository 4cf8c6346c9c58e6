// The part that all engines between processes have in common. It has the queue that their
// operations go on in, and the failure after which every operation throws the same. It searches for
// the rank to blame. An engine adds how an operation blocks until it is over, what its own
// exceptions mean, and how it ends its connections. blocking_engine.h makes the asynchronous
// interface of blocking operations.
#pragma once

#include <troika/base/error.h>
#include <troika/comm/failure/abort_store.h>
#include <troika/comm/failure/abort_watcher.h>
#include <troika/comm/failure/diagnosis.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/comm/group.h>
#include <troika/comm/members.h>
#include <troika/comm/operation_context.h>
#include <troika/comm/work_queue.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class EngineBase : public GroupEngine {
 public:
  ~EngineBase() override = default;
  [[nodiscard]] std::string_view name() const final { return name_; }
  void abort(const std::string& reason) final { fail(decode_failure(reason)); }

 protected:
  struct Parts {
    std::string name;
    Members members;
    // Collects from members of other hosts, too, where it has a store.
    SnapshotCollector snapshot_collector{std::nullopt};
    // Publishes why this member has failed, and has the reasons of the others. Absent where the
    // engine does both itself.
    std::optional<AbortStore> abort_store = {};
  };
  // The watcher acts only while an operation is under way, so never before the engine is complete.
  explicit EngineBase(Parts parts);
  // Waits for operations under way, then stops all threads of the base. Every engine's destructor
  // must call it before the engine's own members are destroyed.
  void stop();

  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] int index() const { return members_.index; }
  // Returns "all_reduce 'gradients' on axis data".
  [[nodiscard]] std::string describe(const OperationContext& context) const;

  // Queue a job that blocks: enqueue() after the jobs before it, enqueue_beside() independently of
  // them. `context` names the job in its error if its deadline passes before it is reached.
  Work enqueue(WorkQueue::Job job, const OwnedContext& context);
  Work enqueue_beside(WorkQueue::Job job, const OwnedContext& context);

  // Runs `body`. An exception of it becomes the user's error, after which the engine has failed.
  template <class Body>
  void run(const OperationContext& context, const Body& body) {
    try {
      body();
    } catch (...) {
      throw_users_error(context);
    }
  }
  // Runs `body` as run() does, and watches the abort store meanwhile. For an operation that waits
  // for others.
  template <class Body>
  void run_watched(const OperationContext& context, const Body& body) {
    std::optional<AbortWatcher::ActiveOperation> active;
    if (abort_watcher_) active.emplace(*abort_watcher_);
    run(context, body);
  }

  // Ends all operations, here and at the peers. The first failure stays; later calls only wait
  // until peers no longer touch this member's tensors. Any thread.
  void fail(const Failure& reason);
  // Calls fail(), and returns the PeerError with the same words: "all_reduce 'x' on axis data:
  // WHAT".
  [[nodiscard]] PeerError failed_with(const OperationContext& context, const std::string& what,
                                      const std::string& hint);
  [[nodiscard]] bool has_failed() const;
  // Throws PeerError with the first failure, if there was one.
  void throw_if_failed(const OperationContext& context) const;

  // Returns the user's error for an operation whose deadline has passed, after which the engine has
  // failed. `suspects` are members that this one has heard nothing from.
  [[nodiscard]] std::exception_ptr late(const OperationContext& context, std::vector<int> suspects);
  // Diagnoses what holds the operation up. `suspects` are as for late().
  [[nodiscard]] Diagnosis examine(const OperationContext& context, std::vector<int> suspects);
  // Returns the snapshots by member; nothing for a member without a known snapshot.
  [[nodiscard]] std::vector<std::optional<RankSnapshot>> snapshots();
  // Returns "lost rank 1 (host a, pid 7); it last completed ...".
  [[nodiscard]] std::string describe_loss(int member,
                                          const std::optional<RankSnapshot>& last) const;
  // Returns why `member` has failed, if the abort store has it within `timeout`.
  [[nodiscard]] std::optional<Failure> reason_of(int member, Seconds timeout);

 private:
  // Throws the user's error, after fail(), for an exception of the engine's own types. Returns for
  // all others. Called while an exception of a body is handled.
  virtual void translate(const OperationContext& context) = 0;
  // Ends the operations under way of this member and, where the engine can, of its peers. Called
  // once. Any thread.
  virtual void break_connections(const Failure& reason) = 0;
  // Returns when no peer touches this member's tensors any more. Called at every failure.
  virtual void await_writers() {}
  // Waits up to `timeout` for the reason for which `member` has failed. Throws the user's error if
  // another member is to blame.
  [[nodiscard]] virtual std::optional<Failure> listen(const OperationContext& context, int member,
                                                      Seconds timeout);

  [[noreturn]] void throw_users_error(const OperationContext& context);
  [[nodiscard]] std::exception_ptr overdue(const OperationContext& context);
  // Returns the failure "rank 1 (host a, pid 7) gave up: ...", with the hint of `reason`.
  [[nodiscard]] Failure quoted(int member, const Failure& reason) const;
  // Returns why `member` gave up, in this group or another, if it gives the reason within a moment.
  [[nodiscard]] std::optional<Failure> await_reason(const OperationContext& context, int member);

  std::string name_;
  Members members_;
  SnapshotCollector snapshot_collector_;
  std::optional<AbortStore> abort_store_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // guarded by the mutex
  std::unique_ptr<WorkQueue> queue_;
  std::unique_ptr<WorkQueue> queue_beside_;  // made for the first job that needs it
  std::unique_ptr<AbortWatcher> abort_watcher_;
};

}  // namespace troika
