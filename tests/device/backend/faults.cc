#include "device/backend/faults.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "device/backend/launch.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

constexpr std::size_t kFaultsKept =
    100;  // a missing wait in a loop need not be told a million times

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Kernels and copies that each device still does: all, or what TROIKA_TEST_DEVICE_FAILS says.
std::array<std::atomic<std::int64_t>, kTestDevices>& until_failure() {
  static auto* const counts = [] {
    auto* all = new std::array<std::atomic<std::int64_t>, kTestDevices>;
    const char* until = std::getenv("TROIKA_TEST_DEVICE_FAILS");
    for (auto& each : *all) each = until != nullptr ? std::stoll(until) : kNever;
    return all;
  }();
  return *counts;
}

std::atomic<std::int64_t>& until_failure_of(int device) {
  return until_failure().at(static_cast<std::size_t>(device));
}

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

FailDevice::FailDevice(std::int64_t nth, int device) : device_(device) {
  until_failure_of(device) = nth - 1;
}

// What the device was doing when it failed has ended: no GPU forgets a failure before it starts
// anew.
FailDevice::~FailDevice() {
  if (until_failure_of(device_).exchange(kNever) >= 0) return;
  for (int id = 0; id < kStreamsPerDevice; ++id) {
    wait_on_host(Timeline::instance().of_stream(device_ * kStreamsPerDevice + id));
  }
}

// Worded as LibTorch words an error of CUDA's.
void throw_if_failed(int device) {
  if (until_failure_of(device) >= 0) return;
  constexpr std::int32_t kIllegalAddress = 700;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kIllegalAddress,
                              "HPU error: an illegal memory access was encountered\nIt may have "
                              "been another kernel's.");
}

void count_towards_failure(int device) {
  auto& left = until_failure_of(device);
  if (left != kNever && left >= 0) --left;
  throw_if_failed(device);
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
