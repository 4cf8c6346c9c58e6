// Copies between pinned memory and a device that do not block. They are executed when something
// that comes after them needs what they write, and not before: a program that forgets to wait reads
// poison, and one that overwrites the source too early sends the wrong numbers.
#pragma once

#include <c10/core/Storage.h>

#include <deque>
#include <mutex>

#include "device/backend/accesses.h"

namespace troika::test {

struct LateCopy {
  Operation operation;
  void* to = nullptr;  // where the bytes really lie, on a device, too
  const void* from = nullptr;
  std::size_t bytes = 0;
  Range written;  // as addresses that tensors hold
  Range read;
  c10::Storage host;  // keeps pinned memory until then
};

// Thread-safe.
class LateCopies {
 public:
  [[nodiscard]] static LateCopies& instance();

  // Poisons the destination until the copy is executed.
  void enqueue(LateCopy copy);

  // Executes, oldest first, the copies that an owner of this clock may rely on.
  void execute(const Clock& clock);
  // Does so only if one of them reads or writes these bytes.
  void execute_touching(Range range, const Clock& clock);
  void execute_all();

 private:
  void execute_where(const std::function<bool(const LateCopy&)>& due);

  std::mutex mutex_;
  std::deque<LateCopy> copies_;  // in the order in which they were asked for
};

}  // namespace troika::test
