#include <troika/base/error.h>
#include <troika/compress/codec.h>

#include <string>

namespace troika {

void Codec::check_payload(const at::Tensor& payload, std::int64_t elements,
                          at::ScalarType type) const {
  const std::int64_t bytes = payload_bytes(elements, type);
  if (payload.numel() != bytes) {
    throw DataError(std::to_string(elements) + " values by " + describe() + " are " +
                        std::to_string(bytes) + " bytes, and another process has sent " +
                        std::to_string(payload.numel()),
                    "all processes of a job take the same recipe");
  }
  check_content(payload, elements, type);
}

}  // namespace troika
