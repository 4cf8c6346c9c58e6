// Attention by the kernels of LibTorch's that are fastest for what is asked. Both passes decide by
// the same facts, so that the backward pass understands what the forward pass has kept:
//
//   flash      fp16 and bf16, causal alone, heads of at most 256, compute capability 8.0
//   efficient  fp16, bf16 and fp32; a mask, too
//   composite  the rest: fp64, and heads whose size the others cannot take
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <troika/ops/composite/kernels.h>
#include <troika/ops/cuda/kernels.h>

namespace troika::ops::cuda {
namespace {

enum class Path { kFlash, kEfficient, kComposite };

bool has_flash(at::Device device) {
  int major = 0;
  const cudaError_t code =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  return code == cudaSuccess && major >= 8;
}

Path path_for(const at::Tensor& query, const std::optional<at::Tensor>& mask) {
  constexpr std::int64_t kAlignment = 16;  // bytes
  constexpr std::int64_t kLargestFlashHead = 256;
  const std::int64_t head = query.size(3);
  if (query.scalar_type() == at::kDouble || head * query.element_size() % kAlignment != 0) {
    return Path::kComposite;
  }
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (half && !mask && head <= kLargestFlashHead && has_flash(query.device())) return Path::kFlash;
  return Path::kEfficient;
}

// For each head and query, with rows that begin at multiples of 16 bytes.
std::optional<at::Tensor> aligned(const std::optional<at::Tensor>& mask, const at::Tensor& query) {
  constexpr std::int64_t kAlignment = 16;  // elements
  if (!mask) return mask;
  const std::int64_t samples = query.size(0), heads = query.size(1), length = query.size(2);
  const at::Tensor like_query = mask->to(query.scalar_type());
  const std::int64_t missing = (kAlignment - length % kAlignment) % kAlignment;
  const at::Tensor padded =
      missing == 0 ? like_query.contiguous() : at::pad(like_query, {0, missing});
  return padded.narrow(3, 0, length).expand({samples, heads, length, length});
}

}  // namespace

TwoTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  switch (path_for(query, mask)) {
    case Path::kFlash: {
      auto result = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, true);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case Path::kEfficient: {
      auto result = at::_scaled_dot_product_efficient_attention(
          query, key, value, aligned(mask, query), /*compute_log_sumexp=*/true, 0.0, !mask);
      return {std::get<0>(result), std::get<1>(result)};
    }
    case Path::kComposite:
      break;
  }
  return composite::attention(query, key, value, mask);
}

ThreeTensors attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const std::optional<at::Tensor>& mask, const at::Tensor& output,
                                const at::Tensor& log_sum) {
  const at::Tensor none;  // no dropout, and samples of one length
  switch (path_for(query, mask)) {
    case Path::kFlash: {
      const at::Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
      return at::_scaled_dot_product_flash_attention_backward(gradient, query, key, value, output,
                                                              log_sum, none, none, query.size(2),
                                                              key.size(2), 0.0, true, seed, offset);
    }
    case Path::kEfficient: {
      const at::Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
      auto result = at::_scaled_dot_product_efficient_attention_backward(
          gradient, query, key, value, aligned(mask, query).value_or(none), output, log_sum, seed,
          offset, 0.0, {true, true, true, false}, !mask);
      return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
    }
    case Path::kComposite:
      break;
  }
  return composite::attention_backward(gradient, query, key, value, mask, output, log_sum);
}

}  // namespace troika::ops::cuda
