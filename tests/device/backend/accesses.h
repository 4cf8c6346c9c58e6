// The happens-before checker: who last touched which bytes, and whether the next one has waited for
// that. Accesses are kept by byte range, for slices of one allocation are used by several streams
// at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "device/backend/addresses.h"
#include "device/backend/clock.h"

namespace troika::test {

// Calls the function with each contiguous run of bytes of the tensor; of one in very many runs,
// with all that lies between its first and its last byte. The tensor may be on the device or on the
// host.
void for_each_run(const at::Tensor& tensor, const std::function<void(Range)>& visit);

// Names the operation that touches memory: its stream, and its number there.
struct Operation {
  int stream = 0;
  std::uint64_t tick = 0;  // 0: none
  const char* name = "";   // lives as long as the process

  bool operator==(const Operation& other) const {
    return stream == other.stream && tick == other.tick;
  }
};

// Thread-safe.
class AccessHistory {
 public:
  [[nodiscard]] static AccessHistory& instance();

  // Notes the access of an operation whose stream has the clock. Throws a fault if another stream's
  // conflicting access is not known to it.
  void read(Range range, const Operation& operation, const Clock& clock);
  void write(Range range, const Operation& operation, const Clock& clock);
  // Throws a fault if the stream that is given freed memory does not know of all its uses. Notes
  // nothing: a stream which borrows the memory from this one is held to those uses, too.
  void reuse(Range range, int stream, const Clock& clock);

  void forget(Range range);

 private:
  struct Segment {
    Address end = 0;
    Operation write;
    std::vector<Operation> reads;  // since that write

    [[nodiscard]] bool same_as(const Segment& other) const {
      return write == other.write && reads == other.reads;
    }
  };
  using Segments = std::map<Address, Segment>;

  void prepare(Range range);
  void split(Address at);
  Segments::iterator merge_with_previous(Segments::iterator segment);
  void add_read(Segments::iterator segment, const Operation& operation, const Clock& clock);
  void drop_what_the_host_knows();

  std::mutex mutex_;
  Segments segments_;  // by their first byte
  std::size_t crowded_ = 4096;
};

// Returns a copy of the name that lives as long as the process.
[[nodiscard]] const char* lasting_name(std::string_view name);

}  // namespace troika::test
