// Workers that exchange with each other under a virtual clock: all_reduce, local, gossip. Each
// worker is an island of its own. Nothing of a step's all-reduce overlaps its passes.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/index_range.h>
#include <troika/optim/schedule.h>
#include <troika/server/round_update.h>
#include <troika/server/server_shard.h>
#include <troika/simulate/passes.h>
#include <troika/simulate/sync_simulation.h>
#include <troika/sync/gossip_sync.h>
#include <troika/sync/local_sync.h>
#include <troika/sync/outer_step.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace troika {
namespace {

// What the kinds have in common: a replica's parameters and optimiser are what a server would keep.
class GroupSimulation {
 public:
  GroupSimulation(const Recipe& recipe, const SimulatedJob& job, Passes& passes, int replicas)
      : recipe_(recipe), job_(job), passes_(passes) {
    for (int i = 0; i < replicas; ++i) replicas_.push_back(passes.make_shard(0, 1));
    result_.workers.resize(static_cast<std::size_t>(workers()));
    ready_.resize(static_cast<std::size_t>(workers()));
  }
  virtual ~GroupSimulation() = default;

  SyncSimulation run() {
    try {
      for (std::int64_t step = 1; step <= recipe_.train.steps; ++step) {
        told_ = {step};
        loss_ = weight_ = 0;
        take_step(step);
        told_.seconds = result_.seconds = *std::ranges::max_element(ready_);
        told_.loss = loss_ / weight_;
        if (evaluates_after(recipe_, step)) evaluate();
        result_.steps.push_back(told_);
      }
    } catch (const NonFiniteError& error) {
      result_.failure = error.what();
    }
    return std::move(result_);
  }

 protected:
  virtual void take_step(std::int64_t step) = 0;

  [[nodiscard]] int workers() const { return job_.workers(); }
  [[nodiscard]] const SimulatedJob& job() const { return job_; }
  [[nodiscard]] ServerShard& replica(int index) {
    return *replicas_[static_cast<std::size_t>(index)];
  }
  // When a worker is done with what it was at, in s.
  [[nodiscard]] double& ready(int worker) { return ready_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] at::Tensor empty() const { return passes_.empty(passes_.size()); }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(passes_.size() * passes_.value_bytes());
  }
  [[nodiscard]] double value_bytes() const { return static_cast<double>(passes_.value_bytes()); }

  // Computes a worker's gradients of a step at `values`, and puts them there.
  RemoteUpdate pass(std::int64_t step, int worker, const at::Tensor& values) {
    const std::int64_t batch = recipe_.train.global_batch_size;
    IndexRange samples = even_split(batch, worker, workers());
    samples.first += (step - 1) * batch;
    const RemoteUpdate update = passes_.differentiate({step, samples}, values);
    loss_ += update.loss;
    weight_ += update.weight;
    SimulatedWorker& told = result_.workers[static_cast<std::size_t>(worker)];
    const double seconds = job_.seconds(worker, samples.count, batch);
    ++told.passes;
    told.samples += samples.count;
    told.busy += seconds;
    ready(worker) += seconds;
    return update;
  }
  [[nodiscard]] double rate_of(std::int64_t step) const {
    return learning_rate(recipe_.optimizer, recipe_.train.steps, recipe_.train.global_batch_size,
                         step);
  }
  void note_update() { ++told_.updates; }

  // All workers wait for each other, and add up `bytes`.
  void all_reduce(double bytes) {
    const CollectiveCost cost = all_reduce_cost(job_.link, workers(), bytes);
    const double all = *std::ranges::max_element(ready_) + cost.seconds;
    std::ranges::fill(ready_, all);
    count_bytes(cost.bytes * workers());
  }
  // All workers wait for each other, and add up numbers that are none of the model's.
  void meet() {
    const double all =
        *std::ranges::max_element(ready_) + all_reduce_cost(job_.link, workers(), 0).seconds;
    std::ranges::fill(ready_, all);
  }
  void count_bytes(double sent) {
    result_.sent += sent;
    result_.received += sent;
  }

  // A step with the gradients of all workers, each at the parameters of all replicas. They add up
  // so many values at a time.
  void take_step_together(std::int64_t step, const std::vector<std::int64_t>& buckets) {
    at::Tensor sum;
    std::string skipped;
    double weight = 0;
    for (int worker = 0; worker < workers(); ++worker) {
      at::Tensor values = empty();
      replica(0).read(values);
      const RemoteUpdate update = pass(step, worker, values);
      weight += update.weight;
      if (!update.skipped.empty() && update.weight > 0) skipped = update.skipped;
      sum = sum.defined() ? sum.add_(values) : values;
    }
    for (const std::int64_t values : buckets) {
      all_reduce(static_cast<double>(values) * value_bytes());
    }
    if (!skipped.empty() || !(weight > 0)) return;
    const double squares = sum.to(at::kDouble).square().sum().item<double>();
    const RoundUpdate update =
        round_update(step, squares, weight,
                     {recipe_.train.grad_clip, recipe_.train.on_nonfinite == OnNonFinite::kSkip});
    if (!update.skipped.empty()) return;
    note_update();
    for (const auto& each : replicas_) {
      static_cast<void>(
          each->push({0, step, each->version(), rate_of(step), update.scale, false}, sum));
    }
  }

  // A step of one worker's own. Returns the weight of its targets.
  double take_own_step(std::int64_t step, int worker) {
    const at::Tensor values = empty();
    replica(worker).read(values);
    const RemoteUpdate update = pass(step, worker, values);
    if (!update.skipped.empty()) return update.weight;
    note_update();
    ServerShard& own = replica(worker);
    static_cast<void>(
        own.push({0, step, own.version(), update.learning_rate, update.scale, false}, values));
    return update.weight;
  }

  // Replaces a replica's values, not its optimiser's state.
  void write(int index, const at::Tensor& values) {
    ServerShard& own = replica(index);
    const at::Tensor all = passes_.empty((1 + own.states()) * own.size());
    own.read_all(all);
    all.narrow(0, 0, own.size()).copy_(values);
    own.write_all(all, own.version());
  }

 private:
  // As Trainer::evaluate does it: of the mean, where replicas may differ.
  void evaluate() {
    if (replicas_.size() > 1) {
      result_.outside_seconds += all_reduce_cost(job_.link, workers(), bytes()).seconds;
    }
    told_.held_out_loss = passes_.held_out_loss(mean());
  }
  [[nodiscard]] at::Tensor mean() {
    const at::Tensor mean = empty(), one = empty();
    mean.zero_();
    for (const auto& each : replicas_) {
      each->read(one);
      mean.add_(one);
    }
    return mean.div_(static_cast<double>(replicas_.size()));
  }

  const Recipe& recipe_;
  const SimulatedJob& job_;
  Passes& passes_;
  std::vector<std::unique_ptr<ServerShard>> replicas_;
  std::vector<double> ready_;
  SimulatedStep told_;
  double loss_ = 0, weight_ = 0;  // sums of the step
  SyncSimulation result_;
};

class AllReduceSimulation final : public GroupSimulation {
 public:
  AllReduceSimulation(const Recipe& recipe, const SimulatedJob& job, Passes& passes)
      : GroupSimulation(recipe, job, passes, 1), buckets_(passes.buckets()) {}

 private:
  // The step's loss is added up at the same time.
  void take_step(std::int64_t step) override { take_step_together(step, buckets_); }

  std::vector<std::int64_t> buckets_;
};

// As LocalSync does it.
class LocalSimulation final : public GroupSimulation {
 public:
  LocalSimulation(const Recipe& recipe, const SimulatedJob& job, Passes& passes)
      : GroupSimulation(recipe, job, passes, job.workers()),
        options_(recipe.sync.as<LocalOptions>()),
        anchor_(empty()),
        weights_(static_cast<std::size_t>(workers())) {
    replica(0).read(anchor_);
    if (outer_step_of(options_).momentum > 0) velocity_ = at::zeros_like(anchor_);
  }

 private:
  void take_step(std::int64_t step) override {
    if (step <= options_.start_after) {
      take_step_together(step, {anchor_.numel()});
      replica(0).read(anchor_);
      return;
    }
    for (int worker = 0; worker < workers(); ++worker) {
      weights_[static_cast<std::size_t>(worker)] += take_own_step(step, worker);
    }
    const bool is_due = (step - options_.start_after) % options_.every_steps == 0;
    if (is_due || step % LooseSync::kMeetingSteps == 0) meet();
    if (is_due) exchange();
  }

  void exchange() {
    const at::Tensor change = empty(), own = empty();
    change.zero_();
    double weight = 0;
    for (int worker = 0; worker < workers(); ++worker) {
      double& its = weights_[static_cast<std::size_t>(worker)];
      replica(worker).read(own);
      change.add_(anchor_ - own, its);
      weight += std::exchange(its, 0);
    }
    if (weight > 0) change.div_(weight);
    take_outer_step(outer_step_of(options_), anchor_, velocity_, change);
    for (int worker = 0; worker < workers(); ++worker) write(worker, anchor_);
    all_reduce(bytes() + value_bytes());  // with the weight
  }

  LocalOptions options_;
  at::Tensor anchor_, velocity_;
  std::vector<double> weights_;  // of targets since the last exchange, by worker
};

// As GossipSync does it.
class GossipSimulation final : public GroupSimulation {
 public:
  GossipSimulation(const Recipe& recipe, const SimulatedJob& job, Passes& passes)
      : GroupSimulation(recipe, job, passes, job.workers()),
        options_(recipe.sync.as<GossipOptions>()) {}

 private:
  void take_step(std::int64_t step) override {
    for (int worker = 0; worker < workers(); ++worker) {
      static_cast<void>(take_own_step(step, worker));
    }
    if (workers() == 1) return;
    if (step % LooseSync::kMeetingSteps == 0) meet();
    if (!sent_.empty()) finish_exchange();
    begin_exchange(step - 1);
    if (!options_.overlap) finish_exchange();
  }

  void begin_exchange(std::int64_t step) {
    for (int worker = 0; worker < workers(); ++worker) {
      sent_.push_back(empty());
      replica(worker).read(sent_.back());
      peers_.push_back(gossip_peers(options_.topology, worker, workers(), step).from);
    }
    for (int worker = 0; worker < workers(); ++worker) {
      const std::vector<int>& from = peers_[static_cast<std::size_t>(worker)];
      double all = ready(worker);
      for (const int peer : from) all = std::max(all, ready(peer));
      const double received = bytes() * static_cast<double>(from.size());
      // A receiver says first that it is ready.
      arrives_.push_back(all + 2 * job().link.latency + job().link.seconds(received));
      count_bytes(received);
    }
  }

  void finish_exchange() {
    const std::vector<at::Tensor> sent = std::exchange(sent_, {});
    for (int worker = 0; worker < workers(); ++worker) {
      const auto index = static_cast<std::size_t>(worker);
      at::Tensor change = sent[index].clone();
      for (const int peer : peers_[index]) change.add_(sent[static_cast<std::size_t>(peer)]);
      change.div_(static_cast<double>(peers_[index].size() + 1)).sub_(sent[index]);
      const at::Tensor values = empty();
      replica(worker).read(values);
      write(worker, values.add_(change));
      ready(worker) = std::max(ready(worker), arrives_[index]);
    }
    peers_.clear();
    arrives_.clear();
  }

  GossipOptions options_;
  // Of the exchange on its way, by worker.
  std::vector<at::Tensor> sent_;
  std::vector<std::vector<int>> peers_;
  std::vector<double> arrives_;
};

}  // namespace

SyncSimulation simulate_groups(const Recipe& recipe, const SimulatedJob& job, Passes& passes) {
  const SyncKind& kind = recipe.sync.kind();
  if (recipe.sync.holds<GossipOptions>()) return GossipSimulation(recipe, job, passes).run();
  if (recipe.sync.holds<LocalOptions>()) return LocalSimulation(recipe, job, passes).run();
  // All are one island: replicas stay equal.
  if (kind.island(recipe.sync.options(), 1) == 0) {
    return AllReduceSimulation(recipe, job, passes).run();
  }
  throw UsageError("[sync] kind = \"" + std::string(kind.name()) + "\" is not simulated",
                   "all_reduce, local, gossip and server are");
}

}  // namespace troika
