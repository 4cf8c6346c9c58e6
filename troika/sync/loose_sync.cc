#include <ATen/ATen.h>
#include <troika/sync/loose_sync.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

constexpr const char* kStep = "sync.step";
// What one collective averages, in elements: much longer than it is on its way over a slow link,
// and no longer than its deadline allows.
constexpr std::int64_t kMostAveraged = std::int64_t{16} << 20;

StepPart without_notes(StepPart own) {
  own.stop_signal = 0;
  own.wants_checkpoint = own.data_hashed = false;
  return own;
}

AllReduceOptions within_island(const SyncGroups& groups) {
  return {{groups.island}, groups.partial, groups.timeout, groups.patience};
}

}  // namespace

LooseSync::LooseSync(std::string_view kind, Arena& arena, SyncGroups groups)
    : kind_(kind),
      arena_(arena),
      groups_(std::move(groups)),
      inner_(arena, within_island(groups_)),
      masters_(arena),
      counts_(at::zeros({kCounts}, at::kDouble)) {}

Call LooseSync::call(std::string_view label) const {
  return {label, Deadline::in(groups_.patience * groups_.timeout)};
}

StepReduction LooseSync::world_reduction(const StepPart& own, std::string_view label) const {
  return {{groups_.world},
          own,
          std::string(label),
          groups_.patience * groups_.timeout,
          arena_.device()};
}

void LooseSync::begin_step(int microbatches, Seconds timeout) {
  groups_.timeout = timeout;
  inner_.begin_step(microbatches, timeout);
}

void LooseSync::reduce(const StepPart& own) {
  if (notes_.stop_signal == 0) notes_.stop_signal = own.stop_signal;
  notes_.wants_checkpoint = notes_.wants_checkpoint || own.wants_checkpoint;
  notes_.data_hashed = own.data_hashed;
  if (is_together()) {
    of_all_.emplace(world_reduction(own, "loss"));
    return;
  }
  inner_.reduce(without_notes(own));
  if (!all_meet()) return;
  StepPart meeting = notes_;
  // Of the steps before this one.
  meeting.valid = groups_.island.rank() == 0 ? static_cast<std::int64_t>(valid()) : 0;
  of_all_.emplace(world_reduction(meeting, "meeting"));
}

StepSums LooseSync::sums() {
  if (is_together()) {
    notes_ = {};
    return std::exchange(of_all_, std::nullopt)->wait();
  }
  StepSums sums = inner_.sums();
  weight() += sums.weight;
  sums.data_hashed = false;
  std::int64_t unreported = 0;
  if (of_all_) {
    const StepSums all = std::exchange(of_all_, std::nullopt)->wait();
    sums.stop_signal = all.stop_signal;
    sums.wants_checkpoint = all.wants_checkpoint;
    sums.data_hashed = all.data_hashed;
    unreported = all.valid - static_cast<std::int64_t>(reported_valid());
    valid() = reported_valid() = 0;
    notes_ = {};
  }
  valid() += static_cast<double>(sums.valid);
  sums.valid *= groups_.islands.size();
  reported_valid() += static_cast<double>(sums.valid);
  sums.valid += unreported;
  return sums;
}

void LooseSync::end_step(bool applied) {
  const bool has_changed = !is_together() && exchange();
  ++step_;
  if (has_changed) arena_.publish();
  inner_.end_step(applied || has_changed);
}

StepSums LooseSync::sum(const StepPart& own, std::string_view label) const {
  return world_reduction(own, label).wait();
}

Replicas LooseSync::replicas() const {
  return {groups_.islands.rank(), groups_.islands.size()};
}

void LooseSync::average(const at::Tensor& values) const {
  const at::Tensor flat = values.view({-1});
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kMostAveraged) {
    const at::Tensor part = flat.narrow(0, begin, std::min(kMostAveraged, flat.numel() - begin));
    groups_.islands.all_reduce(part, ReduceOp::kAverage, call("average")).wait();
  }
}

std::string LooseSync::counts_name(int island) const {
  return "island." + std::to_string(island) + "." + kind_ + ".counts";
}

bool LooseSync::goes_on_apart(const HasTensor& has) const {
  const int islands = groups_.islands.size();
  return islands > 1 && has(counts_name(islands - 1)) && !has(counts_name(islands));
}

void LooseSync::save(StateDict& state) const {
  state.set(kStep, step_);
  state.add(counts_name(groups_.islands.rank()),
            ShardDescriptor::whole({kCounts}, groups_.island.rank() == 0), counts_);
}

// The counts of another number of islands are no use.
void LooseSync::add_places(StateDict& state, const HasTensor& has) const {
  if (!goes_on_apart(has)) return;
  state.add(counts_name(groups_.islands.rank()), ShardDescriptor::whole({kCounts}, false), counts_);
}

bool LooseSync::is_of_same_islands(const StateDict& state) const {
  const std::string name = counts_name(groups_.islands.rank());
  return std::ranges::any_of(state.tensors(),
                             [&](const StateTensor& each) { return each.name == name; });
}

// From a state of another kind, or of other islands, all go their own ways from their mean.
void LooseSync::load(const StateDict& state) {
  step_ = state.integer(state.numbers().contains(kStep) ? kStep : "step");
}

}  // namespace troika
