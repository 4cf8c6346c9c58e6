// Streams of the test device in a test's words.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "device/backend/test_device.h"

namespace troika::test {

// Returns the stream that this thread's operators run on.
inline c10::Stream own_stream(int device = 0) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::HPU).getStream(test_device(device));
}

// Returns a stream beside it, one of 31 in turn.
inline c10::Stream other_stream(int device = 0) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::HPU)
      .getStreamFromGlobalPool(test_device(device));
}

// Has the second stream wait for what the first has been given to do.
inline void wait(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(c10::DeviceType::HPU);
  event.record(first);
  event.block(second);
}

}  // namespace troika::test
