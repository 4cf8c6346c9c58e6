#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/parallel/data/parameter_gatherer.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

// The blocks in use, the next, and the one before.
constexpr std::size_t kBuffers = 3;

}  // namespace

ParameterGatherer::ParameterGatherer(Arena& arena, Seconds timeout)
    : arena_(arena),
      group_(arena.sharding().shard),
      timeout_(timeout),
      works_(arena.layout().blocks().size()),
      pool_(group_, kBuffers) {}

Work ParameterGatherer::gather(std::size_t block, const at::Tensor& output) {
  const Block& place = arena_.layout().blocks()[block];
  std::vector<std::int64_t> counts;
  for (std::size_t i = 1; i < place.value_borders.size(); ++i) {
    counts.push_back(place.value_borders[i] - place.value_borders[i - 1]);
  }
  if (output.numel() == 0) return {};
  const std::string label = "values of units " + std::to_string(place.first_unit) + " to " +
                            std::to_string(place.last_unit - 1) + pass_;
  return group_.all_gather(output, arena_.own_values_of(place), {label, Deadline::in(timeout_)},
                           counts);
}

void ParameterGatherer::refresh() {
  if (arena_.sharding().stage == 0) return;
  wait();
  if (arena_.keeps_values()) {
    for (std::size_t block = 0; block < works_.size(); ++block) {
      works_[block] = gather(block, arena_.values_of(arena_.layout().blocks()[block]));
    }
    return;
  }
  while (drop_oldest()) {
  }
  check(residents_.empty(), "values change while they are in use");
  gathers_.clear();
  fetch_ahead(-1, Direction::kForward);
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

void ParameterGatherer::need(int unit, Direction direction) {
  const auto blocks = arena_.blocks_of(unit);
  if (blocks.empty()) return;
  if (arena_.keeps_values()) {
    for (const std::size_t block : blocks) std::exchange(works_[block], {}).wait();
    return;
  }
  if (std::exchange(left_stage_, in_step_ && direction == Direction::kOut)) {
    began_with_.push_back(unit);
  }
  for (const std::size_t block : blocks) {  // first, so that none of them has to go
    if (Resident* resident = find(block)) ++resident->users;
  }
  for (const std::size_t block : blocks) {
    if (find(block) == nullptr) {
      fetch(block);
      ++residents_.back().users;
    }
  }
  for (const std::size_t block : blocks) hand_out(block);
  fetch_ahead(unit, direction);
}

void ParameterGatherer::hand_out(std::size_t block) {
  const auto resident = std::ranges::find(residents_, block, &Resident::block);
  std::exchange(resident->work, {}).wait();
  if (resident->users == 1) {
    arena_.set_values(arena_.layout().blocks()[block], resident->buffer);
  }
  std::rotate(resident, resident + 1, residents_.end());
}

void ParameterGatherer::release(int unit) {
  if (arena_.keeps_values()) return;
  for (const std::size_t block : arena_.blocks_of(unit)) {
    Resident* resident = find(block);
    check(resident != nullptr && resident->users > 0, "values released that nobody needed");
    if (--resident->users == 0) arena_.set_values(arena_.layout().blocks()[block], {});
  }
}

void ParameterGatherer::fetch_ahead(int unit, Direction direction) {
  if (direction == Direction::kOut) {
    const std::size_t pass = began_with_.size();
    if (in_step_ && pass < began_with_before_.size()) fetch_unit(began_with_before_[pass]);
    return;
  }
  const int step = direction == Direction::kForward ? 1 : -1;
  int next = unit + step;
  while (next >= 0 && next < arena_.units() && arena_.blocks_of(next).empty()) next += step;
  if (next >= 0 && next < arena_.units()) fetch_unit(next);
}

void ParameterGatherer::fetch_unit(int unit) {
  for (const std::size_t block : arena_.blocks_of(unit)) {
    if (find(block) != nullptr) continue;
    if (residents_.size() < kBuffers || drop_oldest()) fetch(block);
  }
}

void ParameterGatherer::fetch(std::size_t block) {
  if (residents_.size() >= kBuffers) drop_oldest();
  const std::int64_t bytes = arena_.layout().blocks()[block].value_bytes();
  Resident resident{block, pool_.take(bytes), {}, 0};
  resident.work = gather(block, resident.buffer);
  residents_.push_back(std::move(resident));
  most_ = std::max(most_, residents_.size());
  gathers_.push_back(block);
}

ParameterGatherer::Resident* ParameterGatherer::find(std::size_t block) {
  const auto found = std::ranges::find(residents_, block, &Resident::block);
  return found == residents_.end() ? nullptr : &*found;
}

bool ParameterGatherer::drop_oldest() {
  const auto oldest = std::ranges::find(residents_, 0, &Resident::users);
  if (oldest == residents_.end()) return false;
  oldest->work.wait();
  pool_.give_back(oldest->buffer);
  residents_.erase(oldest);
  return true;
}

}  // namespace troika
