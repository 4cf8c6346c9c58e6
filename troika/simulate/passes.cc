#include <ATen/ATen.h>
#include <troika/base/time.h>
#include <troika/data/dataset.h>
#include <troika/models/kind.h>
#include <troika/server/remote_sync.h>
#include <troika/server/server_optimizer.h>
#include <troika/server/worker_client.h>
#include <troika/simulate/passes.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troika {

namespace {

ServerSettings settings_of(const Recipe& recipe, bool takes_local_steps) {
  if (!takes_local_steps) return {};
  return recipe.sync.kind().servers(recipe.sync.options()).value();
}

}  // namespace

// In place of connections: what is asked for next, and what came of it.
class Passes::PassSync final : public RemoteWorker {
 public:
  PassSync(Arena& arena, const ServerJobOptions& job)
      : RemoteWorker(arena, job), initial_(host_values(masters().size())) {
    masters().read({0, masters().size()}, initial_);
  }

  [[nodiscard]] std::optional<DealtSamples> next_samples() override {
    take(values_);
    return samples_;
  }
  void push(const RemoteUpdate& update) override {
    if (local_steps() > 0) {
      const at::Tensor now = host_values(masters().size());
      masters().read({0, masters().size()}, now);
      update_ = change_in(values_.sub_(now), update);
    } else {
      update_ = update;
      masters().read_gradients({0, masters().size()}, values_);
      values_.mul_(update.unscale);
    }
  }

  void set_pass(const DealtSamples& samples, const at::Tensor& values) {
    samples_ = samples;
    values_ = values;
  }
  void show(const at::Tensor& values) { take(values); }
  [[nodiscard]] const RemoteUpdate& update() const { return update_; }
  [[nodiscard]] const at::Tensor& initial() const { return initial_; }
  [[nodiscard]] const FlatMasters& flat() const { return masters(); }
  [[nodiscard]] Arena& all() const { return arena(); }
  [[nodiscard]] at::Tensor memory(std::int64_t count) const { return host_values(count); }

 private:
  at::Tensor initial_;
  DealtSamples samples_;
  at::Tensor values_;
  RemoteUpdate update_;
};

struct Passes::Parts {
  Recipe recipe;
  ServerSettings settings;   // of local steps
  PassSync* sync = nullptr;  // the trainer's
  std::unique_ptr<Trainer> trainer = {};
};

Passes::Passes(const Recipe& recipe, bool takes_local_steps)
    : parts_(std::make_unique<Parts>(Parts{recipe, settings_of(recipe, takes_local_steps)})) {
  TrainerContext context;
  context.make_sync = [this](Arena& arena, const TrainerContext&) {
    ServerJobOptions job;
    job.local_steps = parts_->settings.local_steps;
    job.outer_lr = parts_->settings.outer.lr;
    auto made = std::make_unique<PassSync>(arena, job);
    parts_->sync = made.get();
    return made;
  };
  parts_->trainer =
      std::make_unique<Trainer>(recipe,
                                open_dataset(recipe.data, traits_of(recipe.model).sample,
                                             static_cast<std::uint64_t>(recipe.seed)),
                                std::move(context));
}

Passes::~Passes() = default;

const Recipe& Passes::recipe() const {
  return parts_->recipe;
}

std::int64_t Passes::size() const {
  return parts_->sync->flat().size();
}

std::int64_t Passes::value_bytes() const {
  return static_cast<std::int64_t>(parts_->sync->initial().element_size());
}

std::vector<std::int64_t> Passes::buckets() const {
  std::vector<std::int64_t> counts;
  for (const Bucket& bucket : parts_->sync->all().layout().trained_buckets()) {
    counts.push_back(bucket.count());
  }
  return counts;
}

IndexRange Passes::range(int shard, int shards) const {
  return shard_range(parts_->sync->flat().size(), shard, shards);
}

std::unique_ptr<ServerShard> Passes::make_shard(int shard, int shards) const {
  const PassSync& sync = *parts_->sync;
  const IndexRange own = range(shard, shards);
  const ServerSettings& settings = parts_->settings;
  const std::vector<ShardSegment> pieces =
      shard_segments(sync.all(), own, /*alike=*/settings.local_steps > 0);
  auto made = std::make_unique<ServerShard>(optimizer_of_servers(settings, recipe().optimizer),
                                            pieces, sync.initial().scalar_type(), shards == 1);
  // The state begins as the optimiser has made it.
  const at::Tensor all = empty((1 + made->states()) * made->size());
  made->read_all(all);
  all.narrow(0, 0, own.count).copy_(sync.initial().narrow(0, own.first, own.count));
  made->write_all(all, 0);
  return made;
}

at::Tensor Passes::empty(std::int64_t count) const {
  return parts_->sync->memory(count);
}

RemoteUpdate Passes::differentiate(const DealtSamples& samples, const at::Tensor& values) {
  parts_->sync->set_pass(samples, values);
  static_cast<void>(parts_->trainer->work());
  return parts_->sync->update();
}

std::optional<double> Passes::held_out_loss(const at::Tensor& values) {
  parts_->sync->show(values);
  const auto evaluation = parts_->trainer->evaluate();
  return evaluation ? std::optional(evaluation->held_out_loss) : std::nullopt;
}

double Passes::measure(std::int64_t samples) {
  constexpr std::size_t kPasses = 5;
  std::array<double, kPasses> times = {};
  for (std::size_t i = 0; i <= kPasses; ++i) {  // the first one warms up
    const at::Tensor values = parts_->sync->initial().clone();
    const auto started = Clock::now();
    static_cast<void>(differentiate({1, {0, samples}}, values));
    if (i > 0) times[i - 1] = Seconds(Clock::now() - started).count();
  }
  std::ranges::sort(times);
  return times[kPasses / 2];
}

}  // namespace troika
