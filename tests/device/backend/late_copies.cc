#include "device/backend/late_copies.h"

#include <cstring>

#include "device/backend/memory.h"

namespace troika::test {
namespace {

bool overlap(Range a, Range b) {
  return a.begin < b.end && b.begin < a.end;
}

auto known_to(const Clock& clock) {
  return [&clock](const LateCopy& copy) {
    return clock.knows(copy.operation.stream, copy.operation.tick);
  };
}

}  // namespace

LateCopies& LateCopies::instance() {
  static auto* const copies = new LateCopies;
  return *copies;
}

void LateCopies::enqueue(LateCopy copy) {
  const std::lock_guard lock(mutex_);
  poison(copy.to, copy.bytes);
  copies_.push_back(std::move(copy));
}

void LateCopies::execute(const Clock& clock) {
  execute_where(known_to(clock));
}

void LateCopies::execute_touching(Range range, const Clock& clock) {
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::none_of(copies_, [&](const LateCopy& copy) {
          return known_to(clock)(copy) &&
                 (overlap(copy.written, range) || overlap(copy.read, range));
        })) {
      return;
    }
  }
  execute(clock);
}

void LateCopies::execute_all() {
  execute_where([](const LateCopy&) { return true; });
}

// A copy comes after those that its stream has waited for, which an owner of the clock knows, too;
// and after them in the queue.
void LateCopies::execute_where(const std::function<bool(const LateCopy&)>& due) {
  const std::lock_guard lock(mutex_);
  std::erase_if(copies_, [&](const LateCopy& copy) {
    if (!due(copy)) {
      return false;
    }
    std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}

}  // namespace troika::test
