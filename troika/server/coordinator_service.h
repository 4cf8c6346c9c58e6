// The coordinator of a job with servers as its workers reach it, and as the process that keeps it
// looks on. Workers call
//
//   join    with the recipe and a summary of the data; answered with a number, and the run that all
//           further calls name. Data that differ are answered with the job's summary, and no number
//   turn    with the report of the last samples; answered with the next ones once the worker may
//           start. "wait" asks it to call again, "again" to push again, "over" to end. With
//           "leaves" there are no next ones. Samples, and "over", tell whether what it has pushed
//           before is applied
//   beat    a sign of life
//   leave   with nothing under way
//   fail    whatever it was at
//   contents  with a summary of what the files hold; "wait" where the job does not know its own yet
//   data    with a summary; answered with the part of the job's data that has the first difference
//   refused  with how the data differ. A worker that the job was started with ends the job; one
//           that has come from outside is a worker no more, and the job goes on
//   server  with a number; answered with the address of that server
#pragma once

#include <troika/rpc/rpc.h>
#include <troika/server/compared_data.h>
#include <troika/server/coordinator.h>
#include <troika/server/shard_clients.h>
#include <troika/sync/remote.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace troika {

struct CoordinatorServiceOptions {
  CoordinatorOptions coordinator = {};
  std::string run;                                      // tells this run's processes from others
  std::string version;                                  // of troika and LibTorch
  std::string recipe;                                   // that workers have to have, too
  std::map<std::string, std::string> model_files = {};  // likewise: digests by title
  std::shared_ptr<ComparedData> data = {};              // that they have to have, too; null: any
  // Synchronous updates are made here.
  std::function<double(std::int64_t step)> learning_rate = {};  // empty: as workers ask for
  double grad_clip = 0;
  bool skips_nonfinite = false;
  bool is_watched = true;      // steps wait for wait_for_step(), which is never called otherwise
  Seconds start_timeout{300};  // for as many workers as the job is started with
  Seconds timeout{60};         // for a step, and a server's answer
  double patience = 1;         // a step may take so many times as long
};

// Returns a name that tells one start of a job from another.
[[nodiscard]] std::string new_run_name();

// Thread safe.
class CoordinatorService {
 public:
  CoordinatorService(CoordinatorServiceOptions options, ShardClients& shards);

  // Answers a worker.
  [[nodiscard]] RpcMessage answer(const RpcRequest& request);

  // Waits for the next step to be complete. Synchronous: lets it be applied; a later one is not
  // before the next call. Throws DeadlineError naming the workers, and what has failed.
  [[nodiscard]] RemoteStep wait_for_step();
  // Stops dealing out samples until resume(), and waits until no worker has an assignment. Returns
  // what a run that is resumed behind `step` goes on from: the finished parts of later steps, and
  // the figures of these steps.
  struct Done {
    std::int64_t parts = 0;
    std::map<std::int64_t, StepFigures> figures = {};
  };
  [[nodiscard]] Done pause(std::int64_t step);
  void resume();
  // Sets a later last step, once all workers have left.
  void set_last_step(std::int64_t last_step);
  // Answers workers that the job is over, and waits until all have left, at most for the time-out
  // of a step.
  void finish();
  // Returns which checkpoints may hold what workers have trained on other data than the job's.
  [[nodiscard]] DataDoubt doubt() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  RpcMessage join(const RpcRequest& request);
  // Goes on without a worker whose data differ, where it has come from outside; else ends the job.
  void refuse(const std::string& reason, std::int64_t position, std::optional<int> worker);
  // Drops a worker as if its lease were over.
  void drop(int worker);
  // Notes the first pass of a worker whose contents have not been compared.
  void note_pass(int worker, const Assignment& assignment);
  RpcMessage turn(const RpcRequest& request);
  void check_run(const std::string& run) const;
  // Resolves workers that are silent, and applies the step that all have pushed.
  void proceed(Lock& lock);
  void resolve_lost(Lock& lock);
  void log_lost(const Coordinator::Lost& lost) const;
  void drive_round(Lock& lock);
  struct Applied {
    std::vector<int> missing;  // workers that have to push again
    double norm = 0;
    std::string skipped;
  };
  Applied apply(const Coordinator::Round& round);
  // Notes when steps are complete.
  void time_steps();
  [[nodiscard]] std::string describe_workers() const;
  void fail(const std::exception_ptr& error);

  CoordinatorServiceOptions options_;
  ShardClients& shards_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Coordinator coordinator_;
  Clock::time_point opened_ = Clock::now();
  std::int64_t wanted_step_;  // that the keeper waits for
  std::int64_t next_timed_;   // the next step to be complete
  // The last step whose values have been fetched for a checkpoint, or have come from one.
  std::int64_t fetched_step_;
  double complete_at_ = 0;  // the one before, in seconds of the clock
  // The facts of a step at the moment it was complete: workers may leave before it is reported.
  struct Completion {
    double seconds = 0;  // since the step before
    std::int64_t workers = 0;
  };
  std::map<std::int64_t, Completion> completions_;  // of steps that have not been reported
  // The first step whose checkpoint may hold what a worker has pushed, by worker: of those whose
  // contents have not been compared.
  std::map<int, std::int64_t> uncompared_;
  std::set<int> refused_;  // workers of other data that are to be dropped
  DataDoubt doubt_;        // for those that have been refused
  bool is_over_ = false;   // for the workers, whatever is left
  bool busy_ = false;      // a thread speaks with servers
  std::exception_ptr failure_;
};

}  // namespace troika
