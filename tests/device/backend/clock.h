// Vector clocks: what a stream, an event or the host knows of every stream.
#pragma once

#include <array>
#include <cstdint>

#include "device/backend/test_device.h"

namespace troika::test {

inline constexpr int kStreamsPerDevice = 32;  // the default stream, and a pool of 31
inline constexpr int kStreams = kTestDevices * kStreamsPerDevice;

// Holds for each stream the number of its operations that have ended, as far as the owner of the
// clock knows.
class Clock {
 public:
  [[nodiscard]] std::uint64_t operator[](int stream) const { return ticks_[index(stream)]; }
  [[nodiscard]] bool knows(int stream, std::uint64_t tick) const { return (*this)[stream] >= tick; }
  [[nodiscard]] bool knows(const Clock& other) const {
    for (int stream = 0; stream < kStreams; ++stream) {
      if (!knows(stream, other[stream])) {
        return false;
      }
    }
    return true;
  }

  void learn(const Clock& other) {
    for (int stream = 0; stream < kStreams; ++stream) {
      learn(stream, other[stream]);
    }
  }
  void learn(int stream, std::uint64_t tick) {
    std::uint64_t& own = ticks_[index(stream)];
    own = tick > own ? tick : own;
  }
  std::uint64_t advance(int stream) { return ++ticks_[index(stream)]; }

 private:
  static std::size_t index(int stream) { return static_cast<std::size_t>(stream); }

  std::array<std::uint64_t, kStreams> ticks_{};
};

}  // namespace troika::test
