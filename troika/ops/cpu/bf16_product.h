// Internal: MKL's product of bf16 factors that is added up in fp32, of a copy that LibTorch brings.
#pragma once

#include <cstdint>

namespace troika::ops::cpu {

// The types and constants are those of MKL's header, which LibTorch does not bring: sizes are 32
// bits wide, matrices in rows. Computes sum = alpha left right + beta sum.
using Bf16Product = void(int layout, int transpose_left, int transpose_right, int m, int n, int k,
                         float alpha, const std::uint16_t* left, int left_stride,
                         const std::uint16_t* right, int right_stride, float beta, float* sum,
                         int sum_stride);
inline constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;

// Returns LibTorch's own copy of that function, or null where it is not faster than a product in
// fp32. A program may have linked another MKL, whose sizes are of 64 bits.
[[nodiscard]] Bf16Product* bf16_product();

}  // namespace troika::ops::cpu
