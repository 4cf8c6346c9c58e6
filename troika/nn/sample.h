// What a model takes: the tensors of one sample, so that data, transfers and checks work for every
// kind of model without knowing it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;  // of one sample; empty: a number
  std::int64_t range = 0;           // integers lie in [0, range); 0: any value
  std::string_view range_key = {};  // the key of [model] that sets the range, for messages

  bool operator==(const TensorSpec&) const = default;
};

struct SampleSpec {
  TensorSpec input;
  TensorSpec target;
  // What rates and totals count: the targets of a sample that can count, and their word.
  std::int64_t targets_per_sample = 1;
  std::string_view unit = "samples";

  // Whether a sample is a row of tokens, and its target the next of each.
  [[nodiscard]] bool is_language() const {
    return input.dtype == at::kLong && input.shape.size() == 1 && target.dtype == at::kLong &&
           target.shape == input.shape && target.range == input.range;
  }
};

}  // namespace troika
