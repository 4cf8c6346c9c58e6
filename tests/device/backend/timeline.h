// Order between streams, events and the host, kept in vector clocks. Kernels run at once, in the
// thread that launches them, so that time says nothing about order here: only waits do.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <mutex>

#include "device/backend/clock.h"

namespace troika::test {

// Numbers the streams of all devices from 0 to kStreams - 1.
[[nodiscard]] int stream_number(const c10::Stream& stream);
// Returns "stream 2", and the device where it is not the first.
[[nodiscard]] std::string stream_name(int stream);

struct DeviceEvent {
  Clock clock;  // of the stream, when it was recorded
  int looks = 0;
  std::chrono::steady_clock::time_point time;
  int device = 0;
};

// Knows how far each stream has come, and what it has waited for. All threads of the host share one
// clock: what one of them has waited for, all of them know. A fault that depends on which thread
// waited goes unseen; no correct program is accused. Thread-safe.
class Timeline {
 public:
  [[nodiscard]] static Timeline& instance();

  // Begins an operation of the stream: it comes after what the stream and the host have waited for.
  Clock begin(int stream);
  // Returns what a stream is known to have done once its operations so far have ended.
  [[nodiscard]] Clock of_stream(int stream);
  [[nodiscard]] Clock of_host();

  void wait_on_stream(int stream, const Clock& clock);
  void wait_on_host(const Clock& clock);

  // Answers false the first time and true the second, unless the host knows already: work takes a
  // while, and ends by itself.
  [[nodiscard]] bool has_ended(DeviceEvent& event);
  [[nodiscard]] bool has_ended(int stream);

  // Is held by the one operation of the stream that runs now.
  [[nodiscard]] std::mutex& turn(int stream) { return turns_[static_cast<std::size_t>(stream)]; }

 private:
  [[nodiscard]] bool look(const Clock& clock, int& looks);

  std::mutex mutex_;
  Clock host_;
  std::array<Clock, kStreams> streams_;
  std::array<int, kStreams> looks_{};
  std::array<std::mutex, kStreams> turns_;
};

// The current device and its current stream are the calling thread's.
[[nodiscard]] int current_device() noexcept;
int exchange_current_device(int device) noexcept;
// Returns the index, or that of the current device for -1.
[[nodiscard]] int device_or_current(int index) noexcept;
[[nodiscard]] c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(const c10::Stream& stream);
// Takes the streams of the pool in turn.
[[nodiscard]] c10::Stream pool_stream(int device);

}  // namespace troika::test
