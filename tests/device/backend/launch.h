// One kernel, or one copy, on a stream: from its launch to its end.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <string_view>

#include "device/backend/accesses.h"

namespace troika::test {

// Comes after all that its stream has been given to do, and holds the stream while it lives. Say
// what it reads and writes before it does: a missing wait throws.
class Launch {
 public:
  enum class Start { kNow, kLate };  // late: what it relies on need not have been executed yet

  Launch(const c10::Stream& stream, std::string_view name, Start start = Start::kNow);

  void reads(const at::Tensor& tensor);
  void writes(const at::Tensor& tensor);

  [[nodiscard]] const Operation& operation() const { return operation_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

 private:
  std::unique_lock<std::mutex> turn_;
  Operation operation_;
  Clock clock_;
};

// Waits for the clock on the host: what it covers has been executed afterwards.
void wait_on_host(const Clock& clock);
// Waits for all that the stream has been given to do.
void wait_for_stream(const c10::Stream& stream);

}  // namespace troika::test
