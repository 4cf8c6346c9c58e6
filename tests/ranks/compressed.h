// What the tests of compression average: a bucket with a matrix and a vector, by each compressor.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <troika/compress/compressors.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troika::test {

using Hook = std::shared_ptr<BucketHook>;

inline constexpr std::int64_t kRows = 40, kColumns = 25, kVector = 9;
inline constexpr std::int64_t kElements = kRows * kColumns + kVector;

inline const std::vector<BucketPart>& bucket_parts() {
  static const std::vector<BucketPart> kParts = {{0, {kRows, kColumns}},
                                                 {kRows * kColumns, {kVector}}};
  return kParts;
}

inline at::Tensor gradients_of(int rank, int step, at::ScalarType type, int bucket = 0) {
  const auto seed = static_cast<std::uint64_t>(1000 * bucket + 100 * step + rank);
  return at::randn({kElements}, at::make_generator<at::CPUGeneratorImpl>(seed), type);
}

// Every kind, and its bytes for fp32, as compressors.h says.
struct TestedCompressor {
  std::string name;
  std::function<Hook()> make;
  std::int64_t bytes;
};

inline std::vector<TestedCompressor> tested_compressors() {
  const auto whole_words = [](std::int64_t bytes) { return (bytes + 7) / 8 * 8; };
  const std::int64_t k = 101;  // ceil(0.1 n)
  return {
      {"bf16", round_to_bf16, 2 * kElements},
      {"fp16", round_to_fp16, 2 * kElements},
      {"int8", [] { return compress_to_int8(64); }, whole_words(kElements + 4 * 16)},
      {"qsgd", [] { return compress_by_qsgd(15, 1); }, whole_words(kElements + 4 * 2)},
      {"top_k", [] { return keep_top_k(0.1); }, whole_words(k * 8)},
      {"random_k", [] { return keep_random_k(0.1, 1); }, k * 4},
      {"power_sgd", [] { return compress_by_power_sgd({.rank = 3}, 1); },
       4 * (3 * (kRows + kColumns) + kVector)},
  };
}

}  // namespace troika::test
