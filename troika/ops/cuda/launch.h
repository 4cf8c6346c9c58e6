// Internal: what the kernels (.cu) offer to the operators (.cc) beside them: addresses on the
// device and counts. nvcc takes a minute to read LibTorch's headers, so it does not see them. All
// of these are queued on `stream` of the current device and return at once; arrays are row-major.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace troika::ops::cuda {

// The type of elements. Kernels compute in fp64 for fp64, else in fp32; that type is called wide.
enum class Scalar { kDouble, kFloat, kHalf, kBFloat16 };

// Normalises rows: by mean and variance, or, where `mean` is null, by their root mean square.
struct Norm {
  const void* input;   // [rows, dim]
  const void* weight;  // [dim], wide
  const void* bias;    // [dim], wide, or null
  void* output;        // [rows, dim]
  void* mean;          // [rows], wide, or null
  void* reciprocal;    // [rows], wide
  std::int64_t rows, dim;
  double eps;
};
void launch(const Norm& call, Scalar scalar, cudaStream_t stream);

// A thread sums a column over this many rows.
inline constexpr std::int64_t kRowsOfChunk = 64;

struct NormBackward {
  const void* gradient;    // [rows, dim]
  const void* input;       // [rows, dim]
  const void* weight;      // [dim], wide
  const void* mean;        // [rows], wide, or null
  const void* reciprocal;  // [rows], wide
  void* of_input;          // [rows, dim]
  void* of_weight;         // [ceil(rows / kRowsOfChunk), dim], wide, to be summed
  void* of_bias;           // the same, or null
  std::int64_t rows, dim;
};
void launch(const NormBackward& call, Scalar scalar, cudaStream_t stream);

// A sum of squares has so many parts at most; one that is not written stays as it was.
inline constexpr unsigned kSquareParts = 1024;

struct SquareSum {
  const void* values;  // [count]
  double* parts;       // [kSquareParts]
  std::int64_t count;
};
void launch(const SquareSum& call, Scalar scalar, cudaStream_t stream);

struct ColumnSums {
  const void* values;  // [rows, dim]
  void* parts;         // [ceil(rows / kRowsOfChunk), dim], wide, to be summed
  std::int64_t rows, dim;
};
void launch(const ColumnSums& call, Scalar scalar, cudaStream_t stream);

struct CrossEntropy {
  void* logits;                 // [rows, classes]
  const std::int64_t* targets;  // [rows], negative ones are ignored
  double* losses;               // [rows]
  std::int64_t rows, classes;
  bool writes_gradient;  // over the logits, of `scale` times the sum of the losses
  double scale;
};
void launch(const CrossEntropy& call, Scalar scalar, cudaStream_t stream);

struct Dropout {
  const void* input;  // elements [first, first + count) of all samples
  void* output;
  const std::int64_t* sample_ids;  // of all samples
  std::int64_t first, count, per_sample;
  std::uint64_t key;
  std::uint64_t threshold;  // of the 32-bit words that keep an element
  double keep_scale;
};
void launch(const Dropout& call, Scalar scalar, cudaStream_t stream);

struct Rotation {
  void* heads;                    // [tokens, width]
  const std::int64_t* positions;  // [tokens]
  const void* table;              // [2, positions, half], wide: cosines, then sines
  std::int64_t tokens, width, half, table_positions;
  bool backward;
};
void launch(const Rotation& call, Scalar scalar, cudaStream_t stream);

struct AdamW {
  void* master;  // fp32 or fp64, as all others
  const void* gradient;
  void* exp_avg;
  void* exp_avg_sq;
  const double* scale;  // of every gradient
  const bool* applies;  // false: everything stays as it is
  std::int64_t count;
  double beta1, beta2, correction, eps, rate, shrink;
};
void launch(const AdamW& call, Scalar scalar, cudaStream_t stream);

}  // namespace troika::ops::cuda
