#include "device/backend/accesses.h"

#include <algorithm>
#include <set>

#include "device/backend/faults.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

constexpr std::int64_t kMostRuns = 4096;

struct Dimension {
  std::int64_t size;
  std::int64_t stride;  // bytes
};

// Returns dimensions that move the address, the innermost first.
std::vector<Dimension> dimensions_of(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  const auto itemsize = static_cast<std::int64_t>(tensor.itemsize());
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) > 0) {
      dimensions.push_back({tensor.size(d), tensor.stride(d) * itemsize});
    }
  }
  std::ranges::sort(dimensions, {}, &Dimension::stride);
  return dimensions;
}

std::string race(const Operation& operation, const char* verb, const Operation& earlier,
                 const char* earlier_verb) {
  return std::string(operation.name) + " on " + stream_name(operation.stream) + " " + verb +
         " what " + earlier.name + " on " + stream_name(earlier.stream) + " " + earlier_verb +
         ", and nothing waits";
}

std::string early_reuse(int stream, const Operation& earlier, const char* earlier_verb) {
  return stream_name(stream) + " is given freed memory that " + earlier.name + " on " +
         stream_name(earlier.stream) + " " + earlier_verb +
         ", and nothing waits: record_stream is missing, or a wait before the tensor is freed";
}

}  // namespace

void for_each_run(const at::Tensor& tensor, const std::function<void(Range)>& visit) {
  if (tensor.numel() == 0) {
    return;
  }
  const auto first = reinterpret_cast<Address>(tensor.const_data_ptr());
  auto dimensions = dimensions_of(tensor);
  auto run = static_cast<std::int64_t>(tensor.itemsize());
  auto outer = dimensions.begin();
  while (outer != dimensions.end() && outer->stride <= run) {
    run += (outer->size - 1) * outer->stride;
    ++outer;
  }
  std::int64_t runs = 1;
  for (auto d = outer; d != dimensions.end() && runs <= kMostRuns; ++d) {
    runs *= d->size;
  }
  if (runs > kMostRuns) {
    for (; outer != dimensions.end(); ++outer) {
      run += (outer->size - 1) * outer->stride;
    }
    runs = 1;
  }
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t rest = r;
    std::int64_t offset = 0;
    for (auto d = outer; d != dimensions.end(); ++d) {
      offset += rest % d->size * d->stride;
      rest /= d->size;
    }
    const Address begin = first + static_cast<Address>(offset);
    visit({begin, begin + static_cast<Address>(run)});
  }
}

const char* lasting_name(std::string_view name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  auto found = names->find(name);
  if (found == names->end()) {
    found = names->emplace(name).first;
  }
  return found->c_str();
}

AccessHistory& AccessHistory::instance() {
  static auto* const history = new AccessHistory;
  return *history;
}

// Has segments begin and end where the range does.
void AccessHistory::prepare(Range range) {
  drop_what_the_host_knows();
  split(range.begin);
  split(range.end);
}

void AccessHistory::split(Address at) {
  auto after = segments_.upper_bound(at);
  if (after == segments_.begin()) {
    return;
  }
  const auto segment = std::prev(after);
  if (segment->first < at && at < segment->second.end) {
    segments_.emplace_hint(after, at, segment->second);
    segment->second.end = at;
  }
}

AccessHistory::Segments::iterator AccessHistory::merge_with_previous(Segments::iterator segment) {
  if (segment == segments_.begin() || segment == segments_.end()) {
    return segment;
  }
  const auto previous = std::prev(segment);
  if (previous->second.end != segment->first || !previous->second.same_as(segment->second)) {
    return segment;
  }
  previous->second.end = segment->second.end;
  segments_.erase(segment);
  return previous;
}

void AccessHistory::add_read(Segments::iterator segment, const Operation& operation,
                             const Clock& clock) {
  // Whoever waits for this read waits for the reads that it has waited for.
  auto& reads = segment->second.reads;
  std::erase_if(
      reads, [&](const Operation& earlier) { return clock.knows(earlier.stream, earlier.tick); });
  reads.push_back(operation);
}

void AccessHistory::read(Range range, const Operation& operation, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  prepare(range);
  Address at = range.begin;
  auto segment = segments_.lower_bound(at);
  while (at < range.end) {
    if (segment == segments_.end() || segment->first > at) {  // never written as far as is known
      const Address end =
          segment == segments_.end() ? range.end : std::min(segment->first, range.end);
      segment = segments_.emplace_hint(segment, at, Segment{end, {}, {}});
    }
    const Operation& written = segment->second.write;
    if (!clock.knows(written.stream, written.tick)) {
      throw_device_fault(race(operation, "reads", written, "writes"));
    }
    add_read(segment, operation, clock);
    at = segment->second.end;
    segment = std::next(merge_with_previous(segment));
  }
  merge_with_previous(segment);
}

void AccessHistory::write(Range range, const Operation& operation, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  prepare(range);
  auto segment = segments_.lower_bound(range.begin);
  while (segment != segments_.end() && segment->first < range.end) {
    const Operation& written = segment->second.write;
    if (!clock.knows(written.stream, written.tick)) {
      throw_device_fault(race(operation, "writes", written, "writes"));
    }
    for (const Operation& read : segment->second.reads) {
      if (!clock.knows(read.stream, read.tick)) {
        throw_device_fault(race(operation, "writes", read, "reads"));
      }
    }
    segment = segments_.erase(segment);
  }
  segment = segments_.emplace_hint(segment, range.begin, Segment{range.end, operation, {}});
  merge_with_previous(std::next(merge_with_previous(segment)));
}

void AccessHistory::reuse(Range range, int stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  prepare(range);
  auto segment = segments_.lower_bound(range.begin);
  for (; segment != segments_.end() && segment->first < range.end; ++segment) {
    const Operation& written = segment->second.write;
    if (!clock.knows(written.stream, written.tick)) {
      throw_device_fault(early_reuse(stream, written, "writes"));
    }
    for (const Operation& read : segment->second.reads) {
      if (!clock.knows(read.stream, read.tick)) {
        throw_device_fault(early_reuse(stream, read, "reads"));
      }
    }
  }
}

void AccessHistory::forget(Range range) {
  const std::lock_guard lock(mutex_);
  prepare(range);
  segments_.erase(segments_.lower_bound(range.begin), segments_.lower_bound(range.end));
}

void AccessHistory::drop_what_the_host_knows() {
  if (segments_.size() < crowded_) {
    return;
  }
  // Every later operation knows what the host knows.
  const Clock host = Timeline::instance().of_host();
  const auto known = [&](const Operation& operation) {
    return host.knows(operation.stream, operation.tick);
  };
  std::erase_if(segments_, [&](const Segments::value_type& segment) {
    return known(segment.second.write) && std::ranges::all_of(segment.second.reads, known);
  });
  crowded_ = std::max<std::size_t>(4096, 2 * segments_.size());
}

}  // namespace troika::test
