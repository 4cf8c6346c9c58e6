#include <ATen/ATen.h>
#include <troika/compress/bucket_hook.h>

#include <vector>

namespace troika {
namespace {

class Compression final : public BucketHook {
 public:
  explicit Compression(at::ScalarType dtype) : dtype_(dtype) {}

  Work start(const GradientBucket& bucket) override {
    at::Tensor& compressed = buffer(bucket);
    compressed.copy_(bucket.gradients);
    return bucket.group->all_reduce(compressed, ReduceOp::kAverage, bucket.call);
  }

  void finish(const GradientBucket& bucket) override { bucket.gradients.copy_(buffer(bucket)); }

 private:
  // Memory that peers can read, made once for each bucket.
  at::Tensor& buffer(const GradientBucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index);
    if (buffers_.size() <= index) buffers_.resize(index + 1);
    at::Tensor& buffer = buffers_[index];
    if (!buffer.defined() || buffer.numel() != bucket.gradients.numel()) {
      const auto bytes =
          static_cast<std::size_t>(bucket.gradients.numel()) * c10::elementSize(dtype_);
      buffer = bucket.group->allocate(bytes, bucket.gradients.device()).view(dtype_);
    }
    return buffer;
  }

  at::ScalarType dtype_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace

std::int64_t BucketPart::count() const {
  return c10::multiply_integers(shape);
}

void BucketHook::end_step(bool) {}

BucketMemory* BucketHook::memory(const GradientBucket&) {
  return nullptr;
}

bool BucketHook::applies_to(const Group& group) const {
  return group.size() > 1;
}

const Group& BucketHook::peers(const Group& group) const {
  return group;
}

std::shared_ptr<BucketHook> compress_to_bf16() {
  return std::make_shared<Compression>(at::kBFloat16);
}

std::shared_ptr<BucketHook> compress_to_fp16() {
  return std::make_shared<Compression>(at::kHalf);
}

}  // namespace troika
