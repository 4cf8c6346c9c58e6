// What a loss compares the outputs of some samples with.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/microbatch.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace troika {

struct LossTargets {
  at::Tensor values;      // [samples, ...]
  at::Tensor weights;     // fp64 [samples], what each weighs; undefined: 1
  at::Tensor sample_ids;  // int64 [samples], for messages; undefined: not known

  LossTargets(at::Tensor values, at::Tensor weights = {},  // NOLINT: a tensor is targets
              at::Tensor sample_ids = {})
      : values(std::move(values)), weights(std::move(weights)), sample_ids(std::move(sample_ids)) {}

  // Returns those of a microbatch: its tensor `name`, and kSampleWeights where it has that.
  [[nodiscard]] static LossTargets of(const Microbatch& microbatch, std::string_view name);

  // Returns the weights with the dimensions and type of `like`, [samples, ...], to multiply it by.
  [[nodiscard]] at::Tensor weights_for(const at::Tensor& like) const;

  // Throws UsageError unless there is a target for each output.
  void check_fits(const at::Tensor& outputs) const;
  // Throw DataError naming the first sample whose target is none of `classes`, is no answer between
  // 0 and 1, or is infinite, or whose weight is negative or no number. Targets that count for
  // nothing pass: kIgnoredTarget, and NaN. Look at host memory alone.
  void check_classes(std::int64_t classes) const;
  void check_answers() const;
  void check_values() const;
  void check_weights() const;
};

// Returns a tensor [samples, ...] as [samples, numbers of a sample].
[[nodiscard]] at::Tensor as_rows(const at::Tensor& tensor);

}  // namespace troika
