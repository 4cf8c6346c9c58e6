#include <troika/comm/signature.h>

#include <ATen/ATen.h>

namespace troika {
namespace {

// With the final mix of splitmix64 (Steele et al. 2014): a few nanoseconds, where a small
// all-reduce takes some hundred.
class Mix {
 public:
  explicit Mix(OperationName operation) : state_(operation.hash()) {}
  Mix& add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
    return *this;
  }
  [[nodiscard]] std::uint64_t digest() const {
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::uint64_t signature_of(OperationName operation, std::uint64_t more) {
  return Mix(operation).add(more).digest();
}

std::uint64_t signature_of(OperationName operation, const at::Tensor& tensor, std::uint64_t more) {
  return signature_of(operation, tensor, {}, more);
}

std::uint64_t signature_of(OperationName operation, const at::Tensor& tensor,
                           std::span<const std::int64_t> counts, std::uint64_t more) {
  Mix mix(operation);
  mix.add(more).add(static_cast<std::uint64_t>(tensor.numel()));
  mix.add(static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t count : counts) mix.add(static_cast<std::uint64_t>(count));
  return mix.digest();
}

}  // namespace troika
