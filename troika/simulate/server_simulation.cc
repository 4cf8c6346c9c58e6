// Workers and servers under a virtual clock: the state machines of troika/server, with events in
// place of connections. A worker's cycle, each arrow with the latency of the link:
//
//   turn -> coordinator -> samples; pull -> each server -> values; the pass; gradients -> each
//   server -> done; turn, with its report
//
// The coordinator of a synchronous step asks the servers for their sums, and then to apply them.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/optim/schedule.h>
#include <troika/server/coordinator.h>
#include <troika/server/round_update.h>
#include <troika/server/server_shard.h>
#include <troika/simulate/network.h>
#include <troika/simulate/passes.h>
#include <troika/simulate/sync_simulation.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <utility>

namespace troika {
namespace {

class ServerSimulation {
 public:
  ServerSimulation(const Recipe& recipe, const SimulatedJob& job, Passes& passes)
      : recipe_(recipe),
        settings_(*recipe.sync.kind().servers(recipe.sync.options())),
        job_(job),
        passes_(passes),
        network_(job.workers() + settings_.servers, job.link, job.unevenness, job.seed),
        coordinator_(coordinator_options()) {
    for (int shard = 0; shard < settings_.servers; ++shard) {
      shards_.push_back(passes.make_shard(shard, settings_.servers));
    }
    for (int place = 0; place < job.workers(); ++place) {
      const double joins = job.stay(place).joins;
      if (joins == 0) {
        join();
      } else {
        after(joins, [this] { join(); });
      }
    }
  }

  SyncSimulation run() {
    try {
      while (!coordinator_.is_over() && result_.failure.empty()) next_event();
    } catch (const NonFiniteError& error) {
      result_.failure = error.what();
    }
    return std::move(result_);
  }

 private:
  using Action = std::function<void()>;
  struct Event {
    double time = 0;
    std::int64_t number = 0;  // of equal times the first comes first
    Action action = {};
    bool operator>(const Event& other) const {
      return std::pair(time, number) > std::pair(other.time, other.number);
    }
  };
  struct Worker {
    Assignment assignment = {};
    RemoteUpdate update = {};
    at::Tensor values;  // pulled, then its gradients
    std::vector<std::int64_t> versions = {};
    std::int64_t staleness = 0;
    int open = 0;                      // servers that have not answered
    bool leaves = false;               // once it is at nothing
    std::unique_ptr<Passes> own = {};  // with an optimiser, for steps of its own
  };

  [[nodiscard]] CoordinatorOptions coordinator_options() const {
    CoordinatorOptions options;
    options.workers = job_.starting();
    options.last_step = recipe_.train.steps;
    options.global_batch_size = recipe_.train.global_batch_size;
    options.staleness = settings_.staleness;
    return options;
  }
  [[nodiscard]] bool takes_local_steps() const { return settings_.local_steps > 0; }
  [[nodiscard]] bool is_synchronous() const { return settings_.staleness == 0; }
  [[nodiscard]] Worker& state_of(int worker) { return workers_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] ServerShard& shard_of(int shard) {
    return *shards_[static_cast<std::size_t>(shard)];
  }
  [[nodiscard]] at::Tensor part_of(const at::Tensor& values, int shard) const {
    const IndexRange range = passes_.range(shard, settings_.servers);
    return values.narrow(0, range.first, range.count);
  }

  void after(double seconds, Action action) {
    events_.push({now_ + seconds, next_number_++, std::move(action)});
  }
  // Carries a body: `action` once it is there.
  void carry(int from, int to, std::int64_t values, Action action) {
    const auto bytes = static_cast<double>(values * passes_.value_bytes());
    transfers_[network_.send(from, to, bytes)] = std::move(action);
  }

  // The next worker, in the order of job_.speeds.
  void join() {
    const auto place = std::ssize(workers_);
    const int worker = coordinator_.join(place, now_);
    check(worker == place, "workers are numbered as they join");
    workers_.emplace_back();
    if (settings_.local_steps > 0) {
      workers_.back().own = std::make_unique<Passes>(recipe_, /*takes_local_steps=*/true);
    }
    result_.workers.emplace_back().joined = now_;
    after(job_.link.latency, [this, worker] { waiting_.push_back(worker); });
    const double leaves = job_.stay(worker).leaves;
    if (std::isfinite(leaves)) {
      after(leaves - now_, [this, worker] { state_of(worker).leaves = true; });
    }
  }

  // Returns whether a worker that is to leave has left.
  bool has_left(int worker) {
    if (!state_of(worker).leaves || !coordinator_.may_leave(worker)) return false;
    coordinator_.remove_worker(worker);
    result_.workers[static_cast<std::size_t>(worker)].left = now_;
    return true;
  }

  // What is due first; transfers before what else is due at that time.
  void next_event() {
    const double none = std::numeric_limits<double>::infinity();
    const double event = events_.empty() ? none : events_.top().time, transfer = network_.next();
    if (std::min(event, transfer) == none) {
      check(coordinator_.workers().empty(), "workers that all wait");
      result_.failure = "all workers have left at " + format_duration(now_);
      return;
    }
    now_ = std::min(event, transfer);
    for (const std::int64_t number : network_.advance(now_)) {
      after(job_.link.latency, transfers_.extract(number).mapped());
    }
    if (transfer > event) {
      const Action action = events_.top().action;
      events_.pop();
      action();
      drive_round();
      start_waiting();
    }
  }

  void start_waiting() {
    std::deque<int> still;
    for (const int worker : std::exchange(waiting_, {})) {
      if (has_left(worker)) continue;
      const auto assignment = coordinator_.is_turn_over(worker, state_of(worker).assignment.turn)
                                  ? coordinator_.try_start(worker)
                                  : std::nullopt;
      if (!assignment) {
        still.push_back(worker);
        continue;
      }
      state_of(worker).assignment = *assignment;
      after(2 * job_.link.latency, [this, worker] { pull(worker); });  // the answer, and requests
    }
    waiting_ = std::move(still);
  }

  void pull(int worker) {
    Worker& own = state_of(worker);
    own.values = passes_.empty(passes_.size());
    own.versions.clear();
    own.open = settings_.servers;
    for (int shard = 0; shard < settings_.servers; ++shard) {
      shard_of(shard).read(part_of(own.values, shard));
      own.versions.push_back(shard_of(shard).version());
      const std::int64_t count = shard_of(shard).size();
      carry(job_.workers() + shard, worker, count, [this, worker] {
        if (--state_of(worker).open == 0) pass(worker);
      });
      result_.received += static_cast<double>(count * passes_.value_bytes());
    }
  }

  void pass(int worker) {
    Worker& own = state_of(worker);
    const Assignment& given = own.assignment;
    own.update =
        (own.own ? *own.own : passes_).differentiate({given.step, given.samples}, own.values);
    const double seconds =
        job_.seconds(worker, given.samples.count, recipe_.train.global_batch_size);
    SimulatedWorker& told = result_.workers[static_cast<std::size_t>(worker)];
    ++told.passes;
    told.samples += given.samples.count;
    told.busy += seconds;
    after(seconds, [this, worker] { push(worker); });
  }

  void push(int worker) {
    Worker& own = state_of(worker);
    own.staleness = 0;
    own.open = settings_.servers;
    if (!own.update.skipped.empty()) {
      after(job_.link.latency, [this, worker] { report(worker); });
      return;
    }
    for (int shard = 0; shard < settings_.servers; ++shard) {
      const std::int64_t count = shard_of(shard).size();
      carry(worker, job_.workers() + shard, count, [this, worker, shard] { take(worker, shard); });
      result_.sent += static_cast<double>(count * passes_.value_bytes());
    }
  }

  // A server has a worker's gradients.
  void take(int worker, int shard) {
    Worker& own = state_of(worker);
    const at::Tensor gradient = part_of(own.values, shard);
    if (is_synchronous()) {
      shard_of(shard).store(worker, own.assignment.step, gradient);
    } else {
      const PushedUpdate update{worker,
                                own.assignment.turn,
                                own.versions[static_cast<std::size_t>(shard)],
                                own.update.learning_rate,
                                own.update.scale,
                                settings_.divides_by_staleness,
                                {},
                                own.assignment.workers};
      own.staleness = std::max(own.staleness, shard_of(shard).push(update, gradient).staleness);
    }
    if (--own.open > 0) return;
    // The answer, and the report.
    after(2 * job_.link.latency, [this, worker] { report(worker); });
  }

  void report(int worker) {
    Worker& own = state_of(worker);
    own.values = at::Tensor();
    coordinator_.finish(worker, own.assignment.turn,
                        {own.update.loss, own.update.weight, own.update.valid, own.update.norm,
                         own.update.learning_rate, own.staleness, own.update.skipped});
    waiting_.push_back(worker);
    note_steps();
  }

  void drive_round() {
    const auto round = coordinator_.complete_round();
    if (!round || round_is_open_) return;
    std::string skipped = round->skipped;
    if (skipped.empty() && !(round->weight > 0)) skipped = "none of its targets counts";
    if (!skipped.empty()) return end_round(0, skipped);
    round_is_open_ = true;
    after(2 * job_.link.latency, [this, round] { sum(*round); });
  }

  void sum(const Coordinator::Round& round) {
    double squares = 0;
    for (const auto& shard : shards_) squares += shard->sum(round.step, round.workers).squares;
    const RoundUpdate update = round_update(round.step, squares, round.weight,
                                            {takes_local_steps() ? 0 : recipe_.train.grad_clip,
                                             recipe_.train.on_nonfinite == OnNonFinite::kSkip});
    if (!update.skipped.empty()) return end_round(update.norm, update.skipped);
    const double rate = takes_local_steps()
                            ? settings_.outer.lr
                            : learning_rate(recipe_.optimizer, recipe_.train.steps,
                                            recipe_.train.global_batch_size, round.step);
    for (const auto& shard : shards_) shard->apply(round.step, rate, update.scale);
    after(2 * job_.link.latency, [this, norm = update.norm] { end_round(norm, ""); });
  }

  void end_round(double norm, const std::string& skipped) {
    round_is_open_ = false;
    coordinator_.end_round(norm, skipped);
    note_steps();
  }

  void note_steps() {
    while (const auto figures = coordinator_.take_figures()) {
      SimulatedStep step{figures->step, now_, figures->loss / figures->weight, figures->updates};
      double sum = 0;
      for (const auto& [staleness, updates] : figures->staleness) {
        result_.staleness[staleness] += updates;
        sum += static_cast<double>(staleness * updates);
      }
      if (figures->updates > 0) step.staleness = sum / static_cast<double>(figures->updates);
      if (evaluates_after(recipe_, step.step)) step.held_out_loss = evaluate();
      result_.steps.push_back(step);
      result_.seconds = now_;
    }
  }

  [[nodiscard]] std::optional<double> evaluate() {
    const at::Tensor values = passes_.empty(passes_.size());
    for (int shard = 0; shard < settings_.servers; ++shard) {
      shard_of(shard).read(part_of(values, shard));
    }
    return passes_.held_out_loss(values);
  }

  const Recipe& recipe_;
  ServerSettings settings_;
  const SimulatedJob& job_;
  Passes& passes_;
  Network network_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<ServerShard>> shards_;
  std::vector<Worker> workers_;  // by number
  std::deque<int> waiting_;      // for samples, in the order in which they asked
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::int64_t, Action> transfers_;
  std::int64_t next_number_ = 0;
  double now_ = 0;
  bool round_is_open_ = false;
  SyncSimulation result_;
};

}  // namespace

SyncSimulation simulate_servers(const Recipe& recipe, const SimulatedJob& job, Passes& passes) {
  return ServerSimulation(recipe, job, passes).run();
}

}  // namespace troika
