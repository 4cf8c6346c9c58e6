// Arrays of a program, by name, as the tensors that a model takes and gives: checked against the
// specs of the model, and converted to their types.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/sample_spec.h>
#include <troika/nn/tensor_map.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

using NamedArrays = std::vector<NamedTensor>;

// The arrays of some samples, in host memory. Each has samples x values_of(spec) numbers, sample by
// sample, in any shape, of type float, double, int32 or int64.
struct ArrayBatch {
  std::int64_t samples = 0;
  NamedArrays inputs, targets;
};

// Returns how many numbers one sample has.
[[nodiscard]] std::int64_t values_of(const TensorSpec& spec);
// Returns the specs of one role, in order.
[[nodiscard]] std::vector<TensorSpec> specs_of(const SampleSpec& sample, TensorRole role);
// Returns the only spec. Throws UsageError where there are several: `role` names them, and `hint`
// says how to give those.
[[nodiscard]] const TensorSpec& only_spec(std::span<const TensorSpec> specs, std::string_view role,
                                          const std::string& hint);

// Throws UsageError where the number of samples is negative.
void check_samples(std::int64_t samples);
// Throws UsageError unless there are `count` numbers for so many samples, at least 0. `title` names
// the array: "input 'x'".
void check_count(const TensorSpec& spec, const std::string& title, std::int64_t samples,
                 std::int64_t count);
// Returns the spec of this name. Throws UsageError naming it, with those that there are.
[[nodiscard]] const TensorSpec& spec_named(std::span<const TensorSpec> specs, std::string_view name,
                                           std::string_view role);

// Returns the tensors of a microbatch, each [samples, ...], in the order of `sample`.
// Floating-point tensors are of type `floating`. A target that is missing is NaN, or kIgnoredTarget
// where it is a class. Throws UsageError naming an array that is missing, unknown, given twice or
// of another size, and the sample and the value that is out of range.
[[nodiscard]] TensorMap sample_tensors(const SampleSpec& sample, const ArrayBatch& batch,
                                       at::ScalarType floating);
// Returns them as above for inputs alone: all targets are zero.
[[nodiscard]] TensorMap input_tensors(const SampleSpec& sample, std::int64_t samples,
                                      const NamedArrays& inputs, at::ScalarType floating);

// Returns the optional arrays that are there, in words, or "" where there are no samples: all ranks
// that have samples have to give the same.
[[nodiscard]] std::string optional_arrays(const SampleSpec& sample, const TensorMap& tensors);

// Returns the tensors without samples.
[[nodiscard]] TensorMap without_samples(const SampleSpec& sample, at::ScalarType floating);
// Returns how many targets of a microbatch count: those that are missing are left out where they
// are classes.
[[nodiscard]] std::int64_t targets_that_count(const SampleSpec& sample, const TensorMap& tensors);

}  // namespace troika
