#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/buffer_pool.h>

#include <algorithm>
#include <numeric>

namespace troika {

// The smallest free one that is large enough.
BufferPool::Buffer* BufferPool::best_free(std::int64_t bytes) {
  Buffer* best = nullptr;
  for (Buffer& buffer : buffers_) {
    if (buffer.in_use || buffer.memory.numel() < bytes) continue;
    if (best == nullptr || buffer.memory.numel() < best->memory.numel()) best = &buffer;
  }
  return best;
}

BufferPool::Buffer& BufferPool::make(std::int64_t bytes) {
  if (buffers_.size() >= usual_) {
    const auto outgrown = std::ranges::find(buffers_, false, &Buffer::in_use);
    if (outgrown != buffers_.end()) buffers_.erase(outgrown);
  }
  buffers_.push_back({group_.allocate(static_cast<std::size_t>(bytes), device_)});
  return buffers_.back();
}

at::Tensor BufferPool::acquire(std::int64_t bytes) {
  Buffer* buffer = best_free(bytes);
  const bool exact = buffer != nullptr && buffer->memory.numel() == bytes;
  if (buffer == nullptr || (!exact && buffers_.size() < usual_)) buffer = &make(bytes);
  buffer->in_use = true;
  return buffer->memory.narrow(0, 0, bytes);
}

void BufferPool::release(const at::Tensor& buffer) {
  const auto found = std::ranges::find_if(
      buffers_, [&](const Buffer& own) { return own.in_use && own.memory.is_alias_of(buffer); });
  check(found != buffers_.end(), "a buffer is released that was not acquired");
  found->in_use = false;
  if (buffers_.size() > usual_) buffers_.erase(found);
}

std::int64_t BufferPool::bytes() const {
  return std::accumulate(
      buffers_.begin(), buffers_.end(), std::int64_t{0},
      [](std::int64_t sum, const Buffer& buffer) { return sum + buffer.memory.numel(); });
}

}  // namespace troika
