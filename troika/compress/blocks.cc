#include <ATen/ATen.h>
#include <troika/compress/blocks.h>

namespace troika::detail {
namespace {

constexpr std::int64_t kFactorBytes = 4;

at::Tensor factors_of(const at::Tensor& payload, std::int64_t blocks) {
  return payload.narrow(0, 0, blocks * kFactorBytes).view(at::kFloat);
}

at::Tensor codes_of(const at::Tensor& payload, std::int64_t blocks, std::int64_t elements) {
  return payload.narrow(0, blocks * kFactorBytes, elements).view(at::kChar);
}

std::int64_t blocks_of(std::int64_t elements, std::int64_t block) {
  return (elements + block - 1) / block;
}

}  // namespace

std::int64_t BlockPayload::bytes(std::int64_t elements) const {
  return padded_bytes(blocks_of(elements, block_) * kFactorBytes + elements);
}

template <class Visit>
void BlockPayload::for_each_run(std::int64_t elements, const Visit& visit) const {
  const std::int64_t whole = elements / block_, rest = elements % block_;
  if (whole > 0) visit(0, whole, block_);
  if (rest > 0) visit(whole, 1, rest);
}

void BlockPayload::encode(const at::Tensor& input, const at::Tensor& payload,
                          const Encode& make) const {
  const std::int64_t elements = input.numel(), blocks = blocks_of(elements, block_);
  const at::Tensor all_factors = factors_of(payload, blocks),
                   all_codes = codes_of(payload, blocks, elements);
  for_each_run(elements, [&](std::int64_t first, std::int64_t count, std::int64_t width) {
    const std::int64_t begin = first * block_;
    at::Tensor factors = all_factors.narrow(0, first, count).view({count, 1});
    at::Tensor codes = all_codes.narrow(0, begin, count * width).view({count, width});
    make(input.narrow(0, begin, count * width).view({count, width}), begin, factors, codes);
  });
}

void BlockPayload::add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                               double scale) const {
  const std::int64_t elements = sum.numel(), blocks = blocks_of(elements, block_);
  const at::Tensor all_factors = factors_of(payload, blocks),
                   all_codes = codes_of(payload, blocks, elements);
  for_each_run(elements, [&](std::int64_t first, std::int64_t count, std::int64_t width) {
    const std::int64_t begin = first * block_;
    const at::Tensor factors =
        all_factors.narrow(0, first, count).view({count, 1}).to(sum.scalar_type()).mul(scale);
    const at::Tensor codes =
        all_codes.narrow(0, begin, count * width).view({count, width}).to(sum.scalar_type());
    sum.narrow(0, begin, count * width).view({count, width}).add_(codes * factors);
  });
}

at::Tensor divisors(const at::Tensor& factors, at::ScalarType type) {
  return at::where(at::isfinite(factors) & (factors > 0), factors, at::ones_like(factors)).to(type);
}

}  // namespace troika::detail
