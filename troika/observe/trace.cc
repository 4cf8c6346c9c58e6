#include <troika/observe/trace.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace troika {
namespace {

template <typename AnyClock>
std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(AnyClock::now().time_since_epoch())
      .count();
}

}  // namespace

Trace::Trace(TraceOptions options)
    : options_(std::move(options)),
      clock_offset_(nanoseconds<std::chrono::system_clock>() -
                    nanoseconds<std::chrono::steady_clock>()) {}

std::int64_t Trace::now() const {
  return nanoseconds<std::chrono::steady_clock>() + clock_offset_;
}

void Trace::begin_step(std::int64_t step) {
  end();
  const bool inside = step >= options_.window.first && step <= options_.window.last;
  if (!inside) return;
  const std::lock_guard lock(mutex_);
  step_ = step;
  step_started_ = now();
  on_.store(true, std::memory_order_relaxed);
}

void Trace::end() {
  std::optional<std::int64_t> step;
  {
    const std::lock_guard lock(mutex_);
    step = std::exchange(step_, std::nullopt);
  }
  if (!step) return;
  add(Track::kStep, "step " + std::to_string(*step), step_started_, now());
  on_.store(false, std::memory_order_relaxed);
  if (*step == options_.window.last) complete_.store(true, std::memory_order_release);
}

void Trace::add(Track track, std::string_view name, std::int64_t started, std::int64_t finished,
                std::optional<std::uint64_t> bytes) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (events_.size() >= options_.max_spans) {
    ++dropped_;
    return;
  }
  events_.push_back({track, std::string(name), started, std::max(started, finished), bytes});
}

Span::~Span() {
  if (trace_ == nullptr) return;
  try {
    trace_->add(track_, name_, started_, trace_->now(), bytes_);
    // Out of memory: a lost span must not end a run. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (...) {
  }
}

}  // namespace troika
