// How often a step of a recipe makes the host wait for its device, by the test device's counters;
// and that a step which the device leaves out changes no bit.
#include <ATen/ATen.h>
#include <troika/sync/all_reduce_sync.h>

#include <cmath>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "device/through_group.h"
#include "ranks/layouts.h"

namespace troika::test {
namespace {

// Counts how often the host has waited for a device, and what it was given by then. Its sums go
// through the host or are the device's.
class CountingSync final : public ReplicaSync {
 public:
  enum class Sums { kThroughHost, kOnDevice };
  struct Counts {
    // When the host is about to wait for the sums, and when it has them.
    DeviceCounters queued, read;
    DeviceCounters ended;
  };
  CountingSync(Arena& arena, AllReduceOptions options, Sums sums, Counts& counts)
      : inner_(arena, std::move(options)), where_(sums), counts_(counts) {}

  void begin_step(int microbatches, Seconds timeout) override {
    before_ = device_counters();
    inner_.begin_step(microbatches, timeout);
  }
  void reduce(const StepPart& own) override { inner_.reduce(own); }
  [[nodiscard]] Updater finish() override { return inner_.finish(); }
  [[nodiscard]] StepSums sums() override {
    counts_.queued = device_counters() - before_;
    return inner_.sums();
  }
  bool sum_on_device(bool wanted) override {
    return where_ == Sums::kOnDevice && inner_.sum_on_device(wanted);
  }
  [[nodiscard]] DeviceSums queue_sums() override {
    counts_.queued = device_counters() - before_;
    return inner_.queue_sums();
  }
  [[nodiscard]] StepSums read_sums(std::span<const double> values) const override {
    counts_.read = device_counters() - before_;
    return inner_.read_sums(values);
  }
  void end_step(bool applied) override {
    counts_.ended = device_counters() - before_;
    inner_.end_step(applied);
  }
  void refresh() override { inner_.refresh(); }
  [[nodiscard]] std::int64_t smallest(std::int64_t own, std::string_view label) const override {
    return inner_.smallest(own, label);
  }
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const override {
    return inner_.sum(own, label);
  }
  void begin_pass(int microbatch, int stage) override { inner_.begin_pass(microbatch, stage); }
  void unshard(int unit, Direction direction) override { inner_.unshard(unit, direction); }
  void reshard(int unit) override { inner_.reshard(unit); }
  void prepare_gradients(int unit) override { inner_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { inner_.gradients_ready(unit); }

 private:
  AllReduceSync inner_;
  Sums where_;
  Counts& counts_;
  DeviceCounters before_;
};

using Sums = CountingSync::Sums;

std::shared_ptr<const Dataset> data_of(const Recipe& recipe) {
  return open_dataset(recipe.data, traits_of(recipe.model).sample, 1);
}

// On a rank alone.
std::unique_ptr<Trainer> counted_trainer(const Recipe& recipe, at::Device device, Sums sums,
                                         CountingSync::Counts& counts) {
  TrainerContext context;
  context.device = device;
  context.make_sync = [&counts, sums](Arena& arena, const TrainerContext&) {
    return std::make_unique<CountingSync>(arena, AllReduceOptions(), sums, counts);
  };
  return std::make_unique<Trainer>(recipe, data_of(recipe), context);
}

Recipe alone(const Recipe& recipe) {
  return resolve_recipe(recipe, 1);
}

Recipe with_optimizer(Recipe recipe, std::string_view kind) {
  recipe.optimizer.kind = Chosen<OptimizerKind>::named(kind);
  return recipe;
}

// Loss, overflow and norm are read at once, when passes, norm and update are queued.
RANK_TEST(StepsOnDevice, TheHostWaitsOnceBehindTheUpdate, 1) {
  const ExpectNoDeviceFault no_fault;
  for (const Recipe& base : {gpt_recipe(), mlp_recipe(), resnet_recipe()}) {
    for (const std::string_view kind : {"adamw", "sgd", "lion"}) {
      CountingSync::Counts counts;
      const auto trainer = counted_trainer(alone(with_optimizer(base, kind)), test_device(),
                                           Sums::kOnDevice, counts);
      for (int step = 0; step < 3; ++step) {
        const DeviceCounters before = device_counters();
        EXPECT_EQ(trainer->step().skipped, "");
        const DeviceCounters all = device_counters() - before;
        EXPECT_EQ(counts.queued.host_waits, 0) << base.model.kind().name();
        EXPECT_EQ(all.host_waits, 1) << base.model.kind().name() << ", " << kind;
        EXPECT_EQ(all.host_reads, 0);
        EXPECT_EQ(all.device_synchronizations, 0);
        EXPECT_EQ(counts.read.kernels, counts.ended.kernels);  // the update was queued
      }
    }
  }
}

// The ratios of LAMB and LARS are the host's, from two sums each.
RANK_TEST(StepsOnDevice, RatiosAreReadByTheHost, 1) {
  const ExpectNoDeviceFault no_fault;
  for (const std::string_view kind : {"lamb", "lars"}) {
    CountingSync::Counts counts;
    const auto trainer = counted_trainer(alone(with_optimizer(mlp_recipe(), kind)), test_device(),
                                         Sums::kOnDevice, counts);
    const DeviceCounters before = device_counters();
    (void)trainer->step();
    EXPECT_EQ((device_counters() - before).host_waits, 3) << kind;
  }
}

// A hook sees the gradients before the update, which then waits; still once.
RANK_TEST(StepsOnDevice, AHookWaitsBeforeTheUpdate, 1) {
  const ExpectNoDeviceFault no_fault;
  CountingSync::Counts counts;
  const auto plain = counted_trainer(alone(gpt_recipe()), test_device(), Sums::kOnDevice, counts);
  const auto hooked = counted_trainer(alone(gpt_recipe()), test_device(), Sums::kOnDevice, counts);
  double norm = 0;
  hooked->set_gradient_hook([&](const StepBatch&, double scale) {
    at::Tensor squares = at::zeros({}, at::kDouble);
    const StateDict state = hooked->gradients();
    for (const StateTensor& each : state.tensors()) {
      squares += (each.tensor.cpu() * scale).square().sum();
    }
    norm = squares.sqrt().item<double>();
  });
  for (int step = 0; step < 2; ++step) {
    const StepMetrics expected = plain->step(), found = hooked->step();
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.grad_norm, expected.grad_norm);
    EXPECT_NEAR(norm, found.grad_norm, 1e-12 * norm);
  }
  EXPECT_GT(counts.ended.kernels, counts.read.kernels);
}

// Sums of ranks without an engine of the device go through the host: the loss, then the norm.
RANK_TEST(StepsOnDevice, AStepReadsTheDeviceSeldom, 1, 2) {
  const Recipe recipe = laid_out(gpt_recipe(), {}, rank);
  TrainerContext context = context_of(recipe, {}, rank);
  context.device = test_device();
  Trainer trainer(recipe, data_of(recipe), context);
  (void)trainer.step();
  const DeviceCounters before = device_counters();
  (void)trainer.step();
  const DeviceCounters step = device_counters() - before;
  EXPECT_LE(step.host_reads, rank.size() == 1 ? 0 : 2);
  if (rank.size() == 1) {
    EXPECT_EQ(step.host_waits, 1);
  }
  EXPECT_EQ(step.device_synchronizations, 0);
}

// The groups of a layout, with an engine of the device.
class DeviceEngines {
 public:
  Group over(const Group& group) {
    if (group.size() == 1) return group;
    const auto make = [this, group](at::Device of) {
      engines_.push_back(std::make_shared<ThroughGroup>(of.type(), group));
      return engines_.back();
    };
    return {group.name(),
            group.ranks(),
            group.rank(),
            0,
            std::make_shared<ThroughGroup>(at::kCPU, group),
            1,
            {},
            make};
  }
  // Returns how often operations have made the host wait.
  [[nodiscard]] std::int64_t host_waits() const {
    std::int64_t calls = 0;
    for (const auto& each : engines_) calls += each->calls;
    return 2 * calls;
  }

 private:
  std::vector<std::shared_ptr<ThroughGroup>> engines_;
};

struct Steps {
  std::vector<double> figures;    // losses and norms
  std::vector<at::Tensor> state;  // this rank's, on the host
};

Steps steps_of(Trainer& trainer, int steps) {
  Steps trained;
  for (int i = 0; i < steps; ++i) {
    const StepMetrics metrics = trainer.step();
    trained.figures.push_back(metrics.loss);
    trained.figures.push_back(metrics.grad_norm);
  }
  const StateDict state = trainer.state();
  for (const StateTensor& each : state.tensors()) {
    trained.state.push_back(each.tensor.cpu().clone());
  }
  return trained;
}

// What ranks sum up on their devices is what they sum up on the host, on every axis.
RANK_TEST(StepsOnDevice, RanksAddUpOnTheirDevices, 2) {
  const ExpectNoDeviceFault no_fault;
  for (const Layout& layout : {Layout{}, Layout{.zero_stage = 2}, Layout{.zero_stage = 3},
                               Layout{.tensor = 2}, Layout{.pipeline = 2}}) {
    Recipe recipe = with_optimizer(gpt_recipe(), "sgd");
    recipe.optimizer.lr = 0.1;
    recipe.train.grad_clip = 0.01;
    recipe = laid_out(recipe, layout, rank);
    TrainerContext host = context_of(recipe, layout, rank);
    Trainer expected(recipe, data_of(recipe), host);

    DeviceEngines engines;
    TrainerContext device;
    device.device = test_device(rank.index());
    RankGroups& groups = device.groups;
    groups.world = engines.over(host.groups.world);
    groups.data = engines.over(host.groups.data);
    groups.tensor = engines.over(host.groups.tensor);
    groups.pipeline = engines.over(host.groups.pipeline);
    groups.shard = groups.data;
    groups.embedding = engines.over(host.groups.embedding);
    Trainer trainer(recipe, data_of(recipe), device);

    const DeviceCounters before = device_counters();
    const std::int64_t of_engines = engines.host_waits();
    const StepMetrics first = trainer.step(), first_expected = expected.step();
    EXPECT_NEAR(first.loss, first_expected.loss, 1e-12);
    // Other layouts have operations that move nothing, or go through the host.
    if (layout.pipeline == 1 && layout.tensor == 1 && layout.zero_stage < 3) {
      EXPECT_EQ((device_counters() - before).host_waits - engines.host_waits() + of_engines, 1)
          << "stage " << layout.zero_stage;
    }
    const Steps found = steps_of(trainer, 2), wanted = steps_of(expected, 2);
    for (std::size_t i = 0; i < wanted.figures.size(); ++i) {
      EXPECT_NEAR(found.figures[i], wanted.figures[i], 1e-11 * std::abs(wanted.figures[i]));
    }
    ASSERT_EQ(found.state.size(), wanted.state.size());
    for (std::size_t i = 0; i < wanted.state.size(); ++i) {
      EXPECT_TRUE(at::allclose(found.state[i], wanted.state[i], 1e-10, 1e-12));
    }
  }
}

// The bits of all that an update writes, working weights among it.
std::vector<at::Tensor> bits_of(Trainer& trainer) {
  std::vector<at::Tensor> bits;
  const auto add = [&](const at::Tensor& tensor) {
    bits.push_back(tensor.cpu().contiguous().view({-1}).view(at::kByte).clone());
  };
  const StateDict state = trainer.state();
  for (const StateTensor& each : state.tensors()) add(each.tensor);
  for (const LocalShard& each : trainer.model().arena().local_shards()) add(each.working_weight);
  return bits;
}

void expect_same_bits(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(found[i].equal(wanted[i])) << i;
}

struct Place {
  at::Device device;
  Sums sums;
};
std::vector<Place> places() {
  return {{at::kCPU, Sums::kThroughHost},
          {test_device(), Sums::kThroughHost},
          {test_device(), Sums::kOnDevice}};
}

// A loss that is not finite: the step is left out, or is an error, wherever the sums are made, and
// no bit changes.
RANK_TEST(StepsOnDevice, ALossThatIsNotFiniteChangesNoBit, 1) {
  const ExpectNoDeviceFault no_fault;
  for (const std::string_view kind : {"adamw", "sgd", "lion", "lamb", "lars"}) {
    for (const Place& place : places()) {
      Recipe recipe = with_optimizer(mlp_recipe(), kind);
      recipe.train.precision = Precision::kBFloat16;
      recipe.train.on_nonfinite = OnNonFinite::kSkip;
      if (kind == "sgd") recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
      CountingSync::Counts counts;
      const auto trainer = counted_trainer(alone(recipe), place.device, place.sums, counts);
      (void)trainer->step();
      trainer->model_places().tensors()[0].tensor[0].fill_(std::nan(""));
      trainer->adopt_values();
      const auto before = bits_of(*trainer);
      const StepMetrics metrics = trainer->step();
      EXPECT_EQ(metrics.skipped, "the loss is not finite on rank 0");
      EXPECT_TRUE(std::isnan(metrics.loss));
      EXPECT_EQ(trainer->progress().updates, 1);
      EXPECT_EQ(trainer->progress().step, 2);
      expect_same_bits(bits_of(*trainer), before);
    }
  }
  for (const Place& place : places()) {
    CountingSync::Counts counts;
    const auto trainer = counted_trainer(alone(mlp_recipe()), place.device, place.sums, counts);
    trainer->model_places().tensors()[0].tensor[0].fill_(std::nan(""));
    trainer->adopt_values();
    const auto before = bits_of(*trainer);
    try {
      (void)trainer->step();
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& error) {
      EXPECT_STREQ(error.what(), "the loss is not finite at step 1 on rank 0");
    }
    expect_same_bits(bits_of(*trainer), before);
  }
}

// fp16 from a scale that is too large: as many steps are left out wherever the sums are made, with
// the same scales, and they change no bit.
RANK_TEST(StepsOnDevice, AnOverflowChangesNoBit, 1) {
  const ExpectNoDeviceFault no_fault;
  std::vector<std::vector<double>> scales;
  for (const Place& place : places()) {
    Recipe recipe = gpt_recipe();
    recipe.train.precision = Precision::kFloat16;
    CountingSync::Counts counts;
    const auto trainer = counted_trainer(alone(recipe), place.device, place.sums, counts);
    StateDict state = trainer->state();
    state.set("loss_scale", LossScaler::kMaximum);
    trainer->restore(state);
    std::vector<double>& own = scales.emplace_back();
    for (int step = 0; step < 8; ++step) {
      const auto before = bits_of(*trainer);
      const std::int64_t updates = trainer->progress().updates;
      const StepMetrics metrics = trainer->step();
      own.push_back(trainer->state().number("loss_scale"));
      EXPECT_EQ(trainer->progress().updates - updates, metrics.skipped.empty() ? 1 : 0);
      if (metrics.skipped.empty()) continue;
      EXPECT_FALSE(std::isfinite(metrics.grad_norm));
      expect_same_bits(bits_of(*trainer), before);
    }
    EXPECT_LT(own.back(), LossScaler::kMaximum);
    EXPECT_GT(trainer->progress().updates, 0);
  }
  EXPECT_EQ(scales[1], scales[0]);
  EXPECT_EQ(scales[2], scales[0]);
}

// On one device the norm's additions differ in their order, and nothing else does.
RANK_TEST(StepsOnDevice, TheUpdateIsTheSameWhereverSumsAreMade, 1) {
  const ExpectNoDeviceFault no_fault;
  for (const std::string_view kind : {"adamw", "sgd", "lion"}) {
    Recipe recipe = with_optimizer(gpt_recipe(), kind);
    recipe.train.precision = Precision::kFloat32;
    recipe.train.grad_clip = 0;
    std::vector<std::vector<at::Tensor>> bits;
    for (const Sums sums : {Sums::kThroughHost, Sums::kOnDevice}) {
      CountingSync::Counts counts;
      const auto trainer = counted_trainer(alone(recipe), test_device(), sums, counts);
      for (int step = 0; step < 3; ++step) (void)trainer->step();
      bits.push_back(bits_of(*trainer));
    }
    expect_same_bits(bits[1], bits[0]);
  }
}

std::vector<const void*> addresses_of(Trainer& trainer) {
  std::vector<const void*> all;
  for (const LocalShard& each : trainer.model().arena().local_shards()) {
    for (const at::Tensor& tensor : {each.master, each.working_weight, each.gradient}) {
      all.push_back(tensor.const_data_ptr());
    }
  }
  const StateDict state = trainer.state();
  for (const StateTensor& each : state.tensors()) {
    all.push_back(each.tensor.const_data_ptr());
  }
  return all;
}

// Parameters, working weights, gradients and the optimiser's state lie where they lay before.
RANK_TEST(StepsOnDevice, AddressesStay, 1, 2) {
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    for (const std::string_view kind : {"adamw", "sgd"}) {
      Recipe recipe = with_optimizer(gpt_recipe(), kind);
      recipe.train.precision = Precision::kBFloat16;
      if (kind == "sgd") recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
      recipe = laid_out(recipe, {.zero_stage = stage}, rank);
      TrainerContext context = context_of(recipe, {.zero_stage = stage}, rank);
      context.device = test_device();
      Trainer trainer(recipe, data_of(recipe), context);
      (void)trainer.step();
      const auto before = addresses_of(trainer);
      for (int step = 0; step < 3; ++step) {
        (void)trainer.step();
        EXPECT_EQ(addresses_of(trainer), before) << "stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace troika::test
