// The test device: a LibTorch back end that proves device code without a GPU. It takes the place of
// an accelerator on the dispatch key HPU. The host cannot read its memory, its streams are checked
// for missing waits, and copies that do not block finish late. Link troika_test_device into a test
// program to have it; README.md says more.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troika::test {

inline constexpr int kTestDevices = 4;
inline constexpr std::size_t kDefaultCapacity = std::size_t{2} << 30;  // bytes of each device

// Returns the device of this index, from 0 to kTestDevices - 1.
[[nodiscard]] c10::Device test_device(int index = 0);

// Counts what the devices did, all of them together, since the process began. Subtract two
// snapshots.
struct DeviceCounters {
  std::int64_t kernels = 0;      // operators and copies that ran on a stream
  std::int64_t late_copies = 0;  // copies between pinned memory and a device that did not block
  std::int64_t host_reads =
      0;  // times the host waited for values: item(), cpu(), nonzero() and the like
  std::int64_t host_waits =
      0;  // times the host waited for a stream or an event; reads and blocking uploads, too
  std::int64_t device_synchronizations = 0;  // times the host waited for all streams of a device

  [[nodiscard]] DeviceCounters operator-(const DeviceCounters& earlier) const;
};
[[nodiscard]] DeviceCounters device_counters();

// Returns the faults found since the last call, oldest first, and forgets them: two streams that
// touch the same bytes without a wait between them, freed memory that is given away while another
// stream uses it, and synchronizations that were forbidden. Each was also thrown where it happened,
// which may be a thread that swallows exceptions. checks.h turns them into failures of a
// GoogleTest.
[[nodiscard]] std::vector<std::string> take_device_faults();

// Makes waiting for all streams of a device a fault while it lives.
class ForbidDeviceSynchronization {
 public:
  ForbidDeviceSynchronization();
  ForbidDeviceSynchronization(const ForbidDeviceSynchronization&) = delete;
  ForbidDeviceSynchronization& operator=(const ForbidDeviceSynchronization&) = delete;
  ~ForbidDeviceSynchronization();
};

// Limits the memory of a device while it lives, cached blocks included. An allocation beyond it
// throws c10::OutOfMemoryError.
class LimitDeviceMemory {
 public:
  explicit LimitDeviceMemory(std::size_t bytes, int device = 0);
  LimitDeviceMemory(const LimitDeviceMemory&) = delete;
  LimitDeviceMemory& operator=(const LimitDeviceMemory&) = delete;
  ~LimitDeviceMemory();

 private:
  int device_;
};

// Lets a device fail at its nth kernel or copy from now (1 is the next), and at whatever it is
// asked for afterwards, as a GPU does after an illegal access: with c10::AcceleratorError. Once
// this is gone it works again, with nothing under way.
class FailDevice {
 public:
  explicit FailDevice(std::int64_t nth, int device = 0);
  FailDevice(const FailDevice&) = delete;
  FailDevice& operator=(const FailDevice&) = delete;
  ~FailDevice();

 private:
  int device_;
};

// Gives cached blocks back and forgets faults, statistics and the history of accesses, for a test
// that follows another in the same process. Executes copies that are still late. Counters stay.
void reset_test_devices();

}  // namespace troika::test
