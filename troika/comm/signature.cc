#include <troika/base/hash.h>
#include <troika/comm/signature.h>

#include <ATen/ATen.h>

namespace troika {

std::uint64_t signature_of(std::string_view operation, std::uint64_t more) {
  return content_hash(operation, more);
}

std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                           std::uint64_t more) {
  return signature_of(operation, tensor, {}, more);
}

std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                           std::span<const std::int64_t> counts, std::uint64_t more) {
  const std::int64_t facts[] = {tensor.numel(), static_cast<std::int64_t>(tensor.scalar_type())};
  return ContentHash(more)
      .update(operation)
      .update(std::as_bytes(std::span(facts)))
      .update(std::as_bytes(counts))
      .digest();
}

}  // namespace troika
