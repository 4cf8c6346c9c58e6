#include <troika/observe/memory_counter.h>

namespace troika {

MemoryCounter& cpu_tensor_bytes() {
  static MemoryCounter counter;
  return counter;
}

}  // namespace troika
