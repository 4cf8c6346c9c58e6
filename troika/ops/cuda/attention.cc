// Attention by the kernels of LibTorch's that are fastest for what is asked. Both passes decide by
// the same facts, so that the backward pass understands what the forward pass has kept. LibTorch's
// settings must not change between them.
//
//   cudnn      fp16 and bf16, causal alone, heads of at most 128, compute capability 9.0, where
//              LibTorch need not be deterministic
//   flash      fp16 and bf16, causal alone, heads of at most 256, compute capability 8.0
//   efficient  fp16, bf16 and fp32; a mask, too
//   composite  the rest: fp64, heads whose size the others cannot take, and what flash does not
//              take where LibTorch is to be deterministic; flash then adds in a fixed order
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <troika/ops/kernels.h>

namespace troika::ops::cuda {
namespace {

enum class Path { kCudnn, kFlash, kEfficient, kComposite };

// 0 where it is not known.
int compute_capability(at::Device device) {
  int major = 0;
  const cudaError_t code =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  return code == cudaSuccess ? major : 0;
}

// The kernels of cuDNN 9.1 and later for Hopper and newer GPUs.
bool has_cudnn_attention(const at::Tensor& query) {
  constexpr std::int64_t kLargestHead = 128, kShortest = 64;
  constexpr long kVersion = 90100;
  static const bool kIsThere = at::Context::hasCuDNN() && at::Context::versionCuDNN() >= kVersion;
  return kIsThere && at::globalContext().userEnabledCuDNNSDP() &&
         !at::globalContext().deterministicAlgorithms() && query.size(3) <= kLargestHead &&
         query.size(2) >= kShortest;
}

Path path_for(const at::Tensor& query, const std::optional<at::Tensor>& mask) {
  constexpr std::int64_t kAlignment = 16;  // bytes
  constexpr std::int64_t kLargestFlashHead = 256;
  const std::int64_t head = query.size(3);
  if (query.scalar_type() == at::kDouble || head * query.element_size() % kAlignment != 0) {
    return Path::kComposite;
  }
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (half && !mask && head <= kLargestFlashHead) {
    const int capability = compute_capability(query.device());
    if (capability >= 9 && has_cudnn_attention(query)) return Path::kCudnn;
    if (capability >= 8) return Path::kFlash;
  }
  return at::globalContext().deterministicAlgorithms() ? Path::kComposite : Path::kEfficient;
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
    case Path::kCudnn: {
      auto result = at::_scaled_dot_product_cudnn_attention(
          query, key, value, std::nullopt, /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
      return {std::get<0>(result), std::get<1>(result)};
    }
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
    case Path::kCudnn: {
      const at::Tensor seed = at::empty({}, query.options().dtype(at::kLong));
      return at::_scaled_dot_product_cudnn_attention_backward(
          gradient, query, key, value, output, log_sum, seed, seed, none, none, none, query.size(2),
          key.size(2), 0.0, /*is_causal=*/true);
    }
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
