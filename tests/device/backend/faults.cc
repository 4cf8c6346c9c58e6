#include "device/backend/faults.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

namespace troika::test {
namespace {

constexpr std::size_t kFaultsKept =
    100;  // a missing wait in a loop need not be told a million times

struct Findings {
  std::mutex mutex;
  DeviceCounters counters;
  std::vector<std::string> faults;
  int forbidden = 0;
};

Findings& findings() {
  static auto* const all = new Findings;
  return *all;
}

}  // namespace

c10::Device test_device(int index) {
  TORCH_CHECK(index >= 0 && index < kTestDevices, "there is no test device ", index,
              ": they are 0 to ", kTestDevices - 1);
  return {c10::DeviceType::HPU, static_cast<c10::DeviceIndex>(index)};
}

DeviceCounters DeviceCounters::operator-(const DeviceCounters& earlier) const {
  return {kernels - earlier.kernels, late_copies - earlier.late_copies,
          host_reads - earlier.host_reads, host_waits - earlier.host_waits,
          device_synchronizations - earlier.device_synchronizations};
}

DeviceCounters device_counters() {
  const std::lock_guard lock(findings().mutex);
  return findings().counters;
}

void count_event(std::int64_t DeviceCounters::*counter) {
  const std::lock_guard lock(findings().mutex);
  ++(findings().counters.*counter);
}

std::vector<std::string> take_device_faults() {
  const std::lock_guard lock(findings().mutex);
  return std::exchange(findings().faults, {});
}

void throw_device_fault(const std::string& what) {
  {
    const std::lock_guard lock(findings().mutex);
    if (findings().faults.size() < kFaultsKept) {
      findings().faults.push_back(what);
    }
  }
  TORCH_CHECK(false, what);
}

ForbidDeviceSynchronization::ForbidDeviceSynchronization() {
  const std::lock_guard lock(findings().mutex);
  ++findings().forbidden;
}

ForbidDeviceSynchronization::~ForbidDeviceSynchronization() {
  const std::lock_guard lock(findings().mutex);
  --findings().forbidden;
}

void check_device_synchronization(int device) {
  {
    const std::lock_guard lock(findings().mutex);
    if (findings().forbidden == 0) {
      return;
    }
  }
  throw_device_fault(
      "hpu:" + std::to_string(device) +
      " is synchronized as a whole where only one stream or event may be waited for");
}

}  // namespace troika::test
