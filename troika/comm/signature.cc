#include <troika/comm/signature.h>

#include <ATen/ATen.h>

namespace troika {
namespace {

// FNV-1a (Fowler, Noll and Vo) with a final mix (splitmix64, Steele et al. 2014): a few
// nanoseconds, where a small all-reduce takes some hundred.
class Mix {
 public:
  Mix& add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
    return *this;
  }
  Mix& add(std::string_view text) {
    for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return *this;
  }
  [[nodiscard]] std::uint64_t digest() const {
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace

std::uint64_t signature_of(std::string_view operation, std::uint64_t more) {
  return Mix().add(operation).add(more).digest();
}

std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                           std::uint64_t more) {
  return signature_of(operation, tensor, {}, more);
}

std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                           std::span<const std::int64_t> counts, std::uint64_t more) {
  Mix mix;
  mix.add(operation).add(more).add(static_cast<std::uint64_t>(tensor.numel()));
  mix.add(static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t count : counts) mix.add(static_cast<std::uint64_t>(count));
  return mix.digest();
}

}  // namespace troika
