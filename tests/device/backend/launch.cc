#include "device/backend/launch.h"

#include "device/backend/faults.h"
#include "device/backend/late_copies.h"
#include "device/backend/memory.h"
#include "device/backend/pinned.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

// What no stream touches by itself needs no order.
bool is_shared_with_streams(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return false;
  }
  return !tensor.device().is_cpu() || is_pinned_address(tensor.storage().data());
}

}  // namespace

Launch::Launch(const c10::Stream& stream, std::string_view name, Start start) {
  count_towards_failure(stream.device_index());
  const int number = stream_number(stream);
  turn_ = std::unique_lock(Timeline::instance().turn(number));
  clock_ = Timeline::instance().begin(number);
  operation_ = {number, clock_[number], lasting_name(name)};
  if (start == Start::kNow) {
    LateCopies::instance().execute(clock_);
    count_event(&DeviceCounters::kernels);
  }
}

void Launch::reads(const at::Tensor& tensor) {
  if (is_shared_with_streams(tensor)) {
    for_each_run(tensor,
                 [&](Range run) { AccessHistory::instance().read(run, operation_, clock_); });
  }
}

void Launch::writes(const at::Tensor& tensor) {
  if (is_shared_with_streams(tensor)) {
    for_each_run(tensor,
                 [&](Range run) { AccessHistory::instance().write(run, operation_, clock_); });
  }
}

void wait_on_host(const Clock& clock) {
  Timeline::instance().wait_on_host(clock);
  LateCopies::instance().execute(clock);
}

void wait_for_stream(const c10::Stream& stream) {
  count_event(&DeviceCounters::host_waits);
  const int number = stream_number(stream);
  const std::lock_guard turn(Timeline::instance().turn(number));
  wait_on_host(Timeline::instance().of_stream(number));
}

}  // namespace troika::test
