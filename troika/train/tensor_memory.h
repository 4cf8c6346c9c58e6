// How many bytes tensors have in this process: what is alive now, and the most that ever was.
// Counted where LibTorch takes memory, so the temporary tensors of its operators are included, and
// where an engine gives out memory that peers can read (Group::allocate). A process may also keep
// the memory of tensors that are gone for those to come.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika {

struct TensorMemory {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // since counting began, or since reset_peak()
  // The most that the allocator of a device had taken of its memory, since then; 0 on the host.
  std::int64_t peak_reserved_bytes = 0;
  // On the host: memory of tensors that are gone, kept for others (reuse_tensor_memory). It is in
  // neither of the first two.
  std::int64_t cached_bytes = 0;
};

// Starts to count tensors of `device`, kCPU or kMeta (which have sizes but no memory), until the
// process ends. Call before other threads use tensors; a second call has no effect.
void count_tensor_memory(at::DeviceType device);
// Returns the counts; zero for a device that is not counted. Others than these two are always
// counted, by LibTorch's allocator of the device. Thread-safe.
[[nodiscard]] TensorMemory tensor_memory(at::Device device);
// Sets the peak to the bytes that are live now. Thread-safe.
void reset_peak(at::Device device);

// Counts tensors on the host, and keeps the memory of those that are gone for others, until the
// process ends: a step then takes no fresh pages from the kernel, which would have to clear them.
// One call at the start of a program is enough; call it before other threads use tensors. Tensors
// that are alive keep their memory, and LibTorch frees it as before. At most the peak of the
// tensors of one step is kept, and a twentieth of it. Counts alone where the program was built with
// a sanitizer, which reuse would blind, or has a limit of its addresses (ulimit -v).
void reuse_tensor_memory();
// Begin and end a step of training, after which at most its peak is kept: what an evaluation or a
// checkpoint has taken between two steps is given back. A program that calls neither keeps at most
// its own peak. Where a control group has less than a tenth of its memory left, a step begins with
// nothing kept. Call from one thread.
void begin_memory_step();
void end_memory_step();
// Gives all memory that is kept back to the kernel. Thread-safe.
void trim_tensor_memory();
// For tests: from now on memory of tensors on the host is filled with bits that are NaN in every
// floating type and -1 in every integer, when it is handed out and when it comes back. A program
// that counts or reuses memory also does so where TROIKA_TEST_NAN_MEMORY is set.
void fill_tensor_memory_with_nan(bool fill);

}  // namespace troika
