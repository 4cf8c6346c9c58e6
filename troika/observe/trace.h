// A trace of a few steps for chrome://tracing or ui.perfetto.dev: what this rank did when, forward,
// backward, communication, optimiser and data each on a track of its own. Times count from 1970, so
// that the traces of all ranks, whose clocks agree as well as their hosts' do, line up.
//
// The file is JSON in Chrome's trace event format: an object with `traceEvents`.
// Those with ph "M" name process ("rank 0 (host)") and tracks. Those with ph "X" are spans with
// `ts` and `dur` in microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

enum class Track { kStep, kForward, kBackward, kCommunication, kOptimizer, kData };

// Steps first to last, both included.
struct TraceWindow {
  std::int64_t first = 1;
  std::int64_t last = 0;
};

struct TraceOptions {
  int rank = 0;
  std::string host;
  TraceWindow window;
  // The most spans that are kept. Later ones are only counted.
  std::size_t max_spans = 1'000'000;
};

// Thread-safe. Outside its window a span costs one relaxed load.
class Trace {
 public:
  // Makes a trace that is never on.
  Trace() : Trace(TraceOptions{}) {}
  explicit Trace(TraceOptions options);

  // Switches on or off, as `step` lies in the window or not, and ends the span of the step before.
  void begin_step(std::int64_t step);
  // Ends the span of the step and switches off, as begin_step does for a step outside the window.
  void end();
  // Returns whether the last step of the window has been begun, and is over.
  [[nodiscard]] bool complete() const { return complete_.load(std::memory_order_acquire); }
  [[nodiscard]] bool on() const { return on_.load(std::memory_order_relaxed); }

  // Returns nanoseconds since 1970, never going backwards.
  [[nodiscard]] std::int64_t now() const;
  // Adds a span that is over, in the clock of now(). `bytes` is what was moved, where that makes
  // sense. Does nothing when off.
  void add(Track track, std::string_view name, std::int64_t started, std::int64_t finished,
           std::optional<std::uint64_t> bytes = std::nullopt);

  // Returns the JSON of all spans so far. Spans of one track that overlap without one holding the
  // other (two transfers under way) are put on tracks "communication 2", "communication 3", ...
  [[nodiscard]] std::string json() const;
  // Writes json() atomically. Throws StorageError.
  void write(const std::filesystem::path& path) const;

 private:
  struct Event {
    Track track;
    std::string name;
    std::int64_t started;
    std::int64_t finished;
    std::optional<std::uint64_t> bytes;
  };
  // A row of spans that lie apart or inside each other.
  struct Lane {
    Track track;
    int number;  // from 0, among those of the track
    std::vector<const Event*> events;
  };
  [[nodiscard]] static std::vector<Lane> lanes_of(const std::vector<Event>& events);

  TraceOptions options_;
  std::int64_t clock_offset_;  // steady clock to wall clock
  std::atomic<bool> on_ = false;
  std::atomic<bool> complete_ = false;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::uint64_t dropped_ = 0;
  std::optional<std::int64_t> step_;  // the step under way, if it is in the window
  std::int64_t step_started_ = 0;
};

// The span from its construction to its destruction.
class Span {
 public:
  // Starts the span. `trace` may be null: off.
  Span(Trace* trace, Track track, std::string_view name,
       std::optional<std::uint64_t> bytes = std::nullopt)
      : trace_(trace != nullptr && trace->on() ? trace : nullptr), track_(track), bytes_(bytes) {
    if (trace_ == nullptr) return;
    name_ = name;
    started_ = trace_->now();
  }
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace* trace_;
  Track track_;
  std::optional<std::uint64_t> bytes_;
  std::string name_;
  std::int64_t started_ = 0;
};

// Returns <run>/trace-rank-3.json.
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& run_folder, int rank);
// Writes one trace of several ranks', with a process for each. Throws DataError naming a part that
// is missing or is no trace, StorageError if `merged` cannot be written.
void merge_traces(std::span<const std::filesystem::path> parts,
                  const std::filesystem::path& merged);

}  // namespace troika
