#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/parameter_gatherer.h>
#include <troika/sync/gradients/shard_counts.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

// The buckets of the unit in use, of the next, and of the one before. A unit that is trained in
// part has two.
std::size_t buffers_for(const Arena& arena) {
  constexpr std::size_t kUnits = 3;
  const auto buckets = arena.layout().buckets();
  for (const Bucket& trained : arena.layout().trained_buckets()) {
    for (const Bucket& frozen : buckets.subspan(arena.layout().trained_buckets().size())) {
      if (frozen.first_unit == trained.first_unit) return 2 * kUnits;
    }
  }
  return kUnits;
}

std::vector<ShardedBucket> sharded_buckets(const Arena& arena) {
  std::vector<ShardedBucket> sharded;
  for (const Bucket& bounds : arena.layout().buckets()) {
    sharded.push_back({.label = "values of units " + std::to_string(bounds.first_unit) + " to " +
                                std::to_string(bounds.last_unit - 1),
                       .counts = shard_counts(bounds.working_borders),
                       .own = arena.own_working_weights_of(bounds)});
    if (arena.keeps_working_weights()) sharded.back().whole = arena.working_weights_of(bounds);
  }
  return sharded;
}

}  // namespace

ParameterGatherer::ParameterGatherer(Arena& arena, Seconds timeout)
    : arena_(arena),
      gatherer_(sharded_buckets(arena), arena.sharding().shard, timeout),
      most_residents_(buffers_for(arena)),
      pool_(arena.sharding().shard, most_residents_, arena.device()) {}

void ParameterGatherer::refresh(std::size_t buckets) {
  if (arena_.sharding().stage == 0) return;
  wait();
  if (arena_.keeps_working_weights()) {
    gatherer_.start_first(buckets);
    return;
  }
  while (evict_oldest()) {
  }
  check(residents_.empty(), "values change while they are in use");
  gathers_.clear();
  prefetch(-1, Direction::kForward);
}

void ParameterGatherer::begin_step(Seconds timeout) {
  gatherer_.set_timeout(timeout);
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
  gatherer_.wait();
  for (Resident& resident : residents_) std::exchange(resident.work, {}).wait();
}

void ParameterGatherer::unshard(int unit, Direction direction) {
  const auto buckets = arena_.buckets_of(unit);
  if (buckets.empty()) return;
  if (arena_.keeps_working_weights()) {
    for (const std::size_t bucket : buckets) gatherer_.wait(bucket);
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
    if (residents_.size() < most_residents_ || evict_oldest()) fetch(bucket);
  }
}

void ParameterGatherer::fetch(std::size_t bucket) {
  if (residents_.size() >= most_residents_) evict_oldest();
  const std::int64_t bytes = arena_.layout().buckets()[bucket].working_bytes();
  Resident resident{bucket, pool_.acquire(bytes), {}, 0};
  resident.work = gatherer_.gather(bucket, resident.buffer);
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
  // Its gather may be under way still, if it was fetched ahead and not used: the buffer is written
  // until it is done.
  oldest->work.wait();
  pool_.release(oldest->buffer);
  residents_.erase(oldest);
  return true;
}

}  // namespace troika
