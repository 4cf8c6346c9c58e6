// A few buffers that are acquired, released and acquired again, so that memory which exists
// only while it is used costs no allocation in a step.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <cstdint>
#include <vector>

namespace troika {

class BufferPool {
 public:
  // Allocates memory of `device` with `group.allocate`. Up to `usual` buffers are made before one
  // is given that is larger than it need be.
  BufferPool(Group group, std::size_t usual, at::Device device = at::kCPU)
      : group_(std::move(group)), usual_(usual), device_(device) {}

  // Returns `bytes` bytes with arbitrary content. Prefers a free buffer of that size, then a new
  // one up to the usual number, then a larger one, then a new one in place of a smaller one.
  [[nodiscard]] at::Tensor acquire(std::int64_t bytes);
  // Releases a buffer from acquire() that is not used any more. Beyond the usual number it is
  // freed.
  void release(const at::Tensor& buffer);

  // Return the number of buffers, free or not, and their bytes.
  [[nodiscard]] std::size_t count() const { return buffers_.size(); }
  [[nodiscard]] std::int64_t bytes() const;

 private:
  struct Buffer {
    at::Tensor memory;
    bool in_use = false;
  };
  [[nodiscard]] Buffer* best_free(std::int64_t bytes);
  [[nodiscard]] Buffer& make(std::int64_t bytes);

  Group group_;
  std::size_t usual_;
  at::Device device_;
  std::vector<Buffer> buffers_;
};

}  // namespace troika
