// Internal. Payloads of 8-bit codes with a factor in fp32 for each block of elements: the factors,
// then the codes.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/compress/codec.h>

#include <cstdint>
#include <functional>

namespace troika::detail {

class BlockPayload {
 public:
  explicit BlockPayload(std::int64_t block) : block_(block) {}

  // Returns the bytes for so many elements.
  [[nodiscard]] std::int64_t bytes(std::int64_t elements) const;

  // Makes factors and codes of blocks [blocks, width]: `factors` is [blocks, 1], fp32, `codes` is
  // int8.
  using Encode = std::function<void(const at::Tensor& rows, std::int64_t begin, at::Tensor& factors,
                                    at::Tensor& codes)>;
  void encode(const at::Tensor& input, const at::Tensor& payload, const Encode& make) const;
  // Adds factor x code x scale to `sum`. A factor that is not finite makes its block so.
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum, double scale) const;

 private:
  // The blocks of a number of elements: whole ones, and a shorter one at the end.
  template <class Visit>
  void for_each_run(std::int64_t elements, const Visit& visit) const;

  std::int64_t block_;
};

// Returns factors to divide by: 1 in place of zero and of what is not finite.
[[nodiscard]] at::Tensor divisors(const at::Tensor& factors, at::ScalarType type);

}  // namespace troika::detail
