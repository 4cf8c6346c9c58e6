// Decides which worker trains on which samples, and when it may start, where parameters lie on
// servers: a state machine without threads, connections or a clock of its own, so that a
// simulation can drive the same code.
//
// Synchronous (staleness 0): the samples of a step are shared out among the workers that are there
// when it begins, and one update follows when all have pushed. Otherwise a step's samples are cut
// into as many parts as the job was started with workers, and a free worker takes the next part;
// each push is an update of its own. A part whose worker is lost is dealt out again. With a bound k
// a worker that has taken c parts waits until every other one has pushed c - k (stale synchronous
// parallel, Ho et al. 2013); without one no worker waits (Downpour, Dean et al. 2012).
#pragma once

#include <troika/base/index_range.h>
#include <troika/base/time.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troika {

// The sums of a step that workers took, and what became of it.
struct StepFigures {
  std::int64_t step = 0;
  double loss = 0, weight = 0;  // sums
  std::int64_t valid = 0;
  double norm = 0;  // synchronous: of the step; else the root mean square of those of its updates
  std::int64_t updates = 0;
  std::map<std::int64_t, std::int64_t> staleness = {};  // updates by their staleness
  std::int64_t lost_samples = 0;                        // of workers that were lost
  std::string skipped = {};                             // why there was no update
};

struct CoordinatorOptions {
  std::int64_t workers = 1;  // with which the job is started, and the parts of a step
  std::int64_t first_step = 1, last_step = 1;
  std::int64_t first_ordinal = 0;  // samples before first_step
  std::int64_t parts_done = 0;     // finished parts, counted from first_step
  std::int64_t global_batch_size = 1;
  std::optional<std::int64_t> staleness = 0;  // nullopt: any
  Seconds lease{60};                          // a worker that is silent for longer is lost
  // The figures of steps with parts that are done.
  std::map<std::int64_t, StepFigures> figures = {};
};

// The samples of one pass of a worker.
struct Assignment {
  std::int64_t turn = 0;     // of this worker, from 1; its push bears the same number
  std::int64_t step = 0;     // from 1
  IndexRange samples = {};   // by ordinal
  std::int64_t workers = 1;  // that are there as it is dealt out
};

// The report of a worker on an assignment.
struct WorkerReport {
  double loss = 0, weight = 0;  // sums
  std::int64_t valid = 0;       // targets that count
  double norm = 0;              // of its mean gradient
  double learning_rate = 0;     // that it asks for
  std::int64_t staleness = 0;   // updates between its pull and its push
  std::string skipped = {};     // why it has pushed nothing; empty where it has
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);

  // Adds a worker and returns its number, which is never given twice. Where several are there, a
  // lower `position` comes first. `now` is in seconds of any clock that only goes forward.
  int join(std::int64_t position, double now);
  // Records that a worker lives. Throws RendezvousError where the job does not have the worker, or
  // no longer has it.
  void record_heartbeat(int worker, double now);
  // Removes a worker that has no assignment.
  void remove_worker(int worker);
  // A worker whose lease has expired, and the assignment that it had.
  struct Lost {
    int worker = 0;
    std::optional<Assignment> assignment = {};
    bool has_failed = false;  // the worker has reported its own failure
  };
  // Removes workers whose lease has expired and returns them. Call resolve_lost() for each.
  [[nodiscard]] std::vector<Lost> expire(double now);
  // Finishes the assignment of a lost worker if its push has arrived (`applied`, with this report);
  // else its samples are dealt out again.
  void resolve_lost(const Lost& lost, bool applied, const WorkerReport& report = {});

  // Sets a later last step, once all workers have left. New workers wait for each other as at the
  // start.
  void set_last_step(std::int64_t last_step);
  // Lets workers start although fewer have come than the job was started with.
  void begin_anyway() { begun_ = true; }
  // Stop and resume dealing out samples.
  void pause() { paused_ = true; }
  void resume() { paused_ = false; }
  // Returns whether no worker has an assignment.
  [[nodiscard]] bool is_idle() const;
  // Return, while paused and idle, the finished parts, counted from first_step without a gap; and
  // the figures of steps that take_figures() has not returned.
  [[nodiscard]] std::int64_t parts_done() const { return parts_finished_; }
  [[nodiscard]] const std::map<std::int64_t, StepFigures>& figures() const { return figures_; }

  // Marks a worker as leaving, and returns whether it may go: it has no assignment, and no share of
  // the step under way. Samples of its share are still dealt to it.
  [[nodiscard]] bool may_leave(int worker);
  // Returns the next samples of a worker, once it may start.
  [[nodiscard]] std::optional<Assignment> try_start(int worker);
  // Returns whether everything has been trained on.
  [[nodiscard]] bool is_over() const;
  // Records that a worker's push of its turn has arrived on all servers. A repeated call changes
  // nothing.
  void finish(int worker, std::int64_t turn, const WorkerReport& report);
  // Marks a worker as having to push again, since a server has lost its push. The step goes on
  // without a worker that the job no longer has.
  void push_again(int worker);

  // Synchronous: the step all of whose workers have pushed, with these, in order; then what has
  // become of it. `norm` is that of the mean gradient; `skipped` says why it was not applied.
  struct Round {
    std::int64_t step = 0;
    std::vector<int> workers;
    double weight = 0;
    double learning_rate = 0;  // that the last of them asks for
    std::string skipped;       // why a worker has pushed nothing, and nothing is to be applied
  };
  [[nodiscard]] std::optional<Round> complete_round() const;
  void end_round(double norm, const std::string& skipped);

  // Returns whether all pushes of a step have arrived.
  [[nodiscard]] bool is_complete(std::int64_t step) const;
  // Returns the figures of the next step that is complete; each step once, in order.
  [[nodiscard]] std::optional<StepFigures> take_figures();

  [[nodiscard]] std::vector<int> workers() const;
  // Returns whether a worker's turn is over: its push has arrived and, synchronous, is in the
  // parameters.
  [[nodiscard]] bool is_turn_over(int worker, std::int64_t turn) const;
  [[nodiscard]] bool has_to_push_again(int worker) const;
  // Returns whether a worker's last push is in the parameters, once its turn is over: all of a
  // synchronous step may be left out.
  [[nodiscard]] bool is_applied(int worker) const;

 private:
  struct Worker {
    std::int64_t position = 0;
    double last_heartbeat = 0;
    std::int64_t turns = 0;
    std::int64_t finished = 0;  // its clock
    std::optional<Assignment> assignment = {};
    std::int64_t part = -1;  // that the assignment is
    bool again = false, leaves = false;
    bool is_applied = true;  // its last push
  };
  // A step that is under way, synchronous.
  struct OpenRound {
    std::vector<int> workers;  // as samples were shared out, by place
    std::set<int> started, gone;
    std::map<int, WorkerReport> pushed;
  };

  [[nodiscard]] bool is_synchronous() const { return options_.staleness == 0; }
  [[nodiscard]] Worker& worker(int number);
  [[nodiscard]] const Worker& worker(int number) const;
  [[nodiscard]] std::int64_t first_sample_of(std::int64_t step) const;
  [[nodiscard]] Assignment assignment_of_part(std::int64_t part) const;
  [[nodiscard]] std::int64_t step_of_part(std::int64_t part) const;
  [[nodiscard]] std::int64_t all_parts() const;
  void open_round();
  std::optional<Assignment> start_in_round(int number);
  std::optional<Assignment> start_part(int number);
  void count(StepFigures& figures, const WorkerReport& report) const;
  void part_done(std::int64_t part);

  CoordinatorOptions options_;
  std::map<int, Worker> workers_;
  int next_worker_ = 0;
  bool begun_ = false;
  bool paused_ = false;
  std::int64_t step_ = 0;  // synchronous: under way
  std::optional<OpenRound> round_;
  std::int64_t next_part_ = 0;
  std::set<std::int64_t> returned_;  // parts to be dealt out again
  std::int64_t parts_finished_ = 0;
  std::map<std::int64_t, std::int64_t> parts_of_step_;  // finished, by step
  std::map<std::int64_t, StepFigures> figures_;
  std::int64_t next_figures_;
};

}  // namespace troika
