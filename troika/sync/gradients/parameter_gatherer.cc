#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/parameter_gatherer.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

// The buckets in use, the next, and the one before.
constexpr std::size_t kBuffers = 3;

}  // namespace

ParameterGatherer::ParameterGatherer(Arena& arena, Seconds timeout)
    : arena_(arena),
      group_(arena.sharding().shard),
      timeout_(timeout),
      works_(arena.layout().buckets().size()),
      pool_(group_, kBuffers) {}

Work ParameterGatherer::gather(std::size_t bucket, const at::Tensor& output) {
  const Bucket& bounds = arena_.layout().buckets()[bucket];
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < bounds.working_borders.size(); ++i) {
    counts.push_back(bounds.working_borders[i] - bounds.working_borders[i - 1]);
  }
  if (output.numel() == 0) return {};
  const std::string label = "values of units " + std::to_string(bounds.first_unit) + " to " +
                            std::to_string(bounds.last_unit - 1) + pass_;
  return group_.all_gather(output, arena_.own_working_weights_of(bounds),
                           {label, Deadline::in(timeout_)}, counts);
}

void ParameterGatherer::refresh() {
  if (arena_.sharding().stage == 0) return;
  wait();
  if (arena_.keeps_working_weights()) {
    for (std::size_t bucket = 0; bucket < works_.size(); ++bucket) {
      works_[bucket] = gather(bucket, arena_.working_weights_of(arena_.layout().buckets()[bucket]));
    }
    return;
  }
  while (evict_oldest()) {
  }
  check(residents_.empty(), "values change while they are in use");
  gathers_.clear();
  prefetch(-1, Direction::kForward);
}

void ParameterGatherer::begin_step(Seconds timeout) {
  timeout_ = timeout;
  began_with_before_ = std::exchange(began_with_, {});
  in_step_ = true;
  left_stage_ = false;
}

void ParameterGatherer::end_step() {
  in_step_ = false;
  left_stage_ = false;  // what comes now is of no step
  wait();
}

void ParameterGatherer::wait() {
  for (Work& work : works_) std::exchange(work, {}).wait();
  for (Resident& resident : residents_) std::exchange(resident.work, {}).wait();
}

void ParameterGatherer::unshard(int unit, Direction direction) {
  const auto buckets = arena_.buckets_of(unit);
  if (buckets.empty()) return;
  if (arena_.keeps_working_weights()) {
    for (const std::size_t bucket : buckets) std::exchange(works_[bucket], {}).wait();
    return;
  }
  if (std::exchange(left_stage_, in_step_ && direction == Direction::kOut)) {
    began_with_.push_back(unit);
  }
  for (const std::size_t bucket : buckets) {  // first, so that none of them has to go
    if (Resident* resident = find(bucket)) ++resident->users;
  }
  for (const std::size_t bucket : buckets) {
    if (find(bucket) == nullptr) {
      fetch(bucket);
      ++residents_.back().users;
    }
  }
  for (const std::size_t bucket : buckets) attach_working_weights(bucket);
  prefetch(unit, direction);
}

void ParameterGatherer::attach_working_weights(std::size_t bucket) {
  const auto resident = std::ranges::find(residents_, bucket, &Resident::bucket);
  std::exchange(resident->work, {}).wait();
  if (resident->users == 1) {
    arena_.set_working_weights(arena_.layout().buckets()[bucket], resident->buffer);
  }
  std::rotate(resident, resident + 1, residents_.end());
}

void ParameterGatherer::reshard(int unit) {
  if (arena_.keeps_working_weights()) return;
  for (const std::size_t bucket : arena_.buckets_of(unit)) {
    Resident* resident = find(bucket);
    check(resident != nullptr && resident->users > 0, "a unit is resharded that is not in use");
    if (--resident->users == 0) arena_.set_working_weights(arena_.layout().buckets()[bucket], {});
  }
}

void ParameterGatherer::prefetch(int unit, Direction direction) {
  if (direction == Direction::kOut) {
    const std::size_t pass = began_with_.size();
    if (in_step_ && pass < began_with_before_.size()) fetch_unit(began_with_before_[pass]);
    return;
  }
  const int step = direction == Direction::kForward ? 1 : -1;
  int next = unit + step;
  while (next >= 0 && next < arena_.units() && arena_.buckets_of(next).empty()) next += step;
  if (next >= 0 && next < arena_.units()) fetch_unit(next);
}

void ParameterGatherer::fetch_unit(int unit) {
  for (const std::size_t bucket : arena_.buckets_of(unit)) {
    if (find(bucket) != nullptr) continue;
    if (residents_.size() < kBuffers || evict_oldest()) fetch(bucket);
  }
}

void ParameterGatherer::fetch(std::size_t bucket) {
  if (residents_.size() >= kBuffers) evict_oldest();
  const std::int64_t bytes = arena_.layout().buckets()[bucket].working_bytes();
  Resident resident{bucket, pool_.acquire(bytes), {}, 0};
  resident.work = gather(bucket, resident.buffer);
  residents_.push_back(std::move(resident));
  most_ = std::max(most_, residents_.size());
  gathers_.push_back(bucket);
}

ParameterGatherer::Resident* ParameterGatherer::find(std::size_t bucket) {
  const auto found = std::ranges::find(residents_, bucket, &Resident::bucket);
  return found == residents_.end() ? nullptr : &*found;
}

bool ParameterGatherer::evict_oldest() {
  const auto oldest = std::ranges::find(residents_, 0, &Resident::users);
  if (oldest == residents_.end()) return false;
  oldest->work.wait();
  pool_.release(oldest->buffer);
  residents_.erase(oldest);
  return true;
}

}  // namespace troika
