// What a model takes: the tensors of one sample, so that data, transfers and checks work for every
// kind of model without knowing it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

enum class TensorRole { kInput, kTarget };

struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;  // of one sample; empty: a number
  std::int64_t range = 0;           // whole numbers in [0, range), of any dtype; 0: any value
  std::string_view range_key = {};  // the key of [model] that sets the range, for messages
  TensorRole role = TensorRole::kInput;
  bool optional = false;  // data may leave it out; optional tensors come last

  bool operator==(const TensorSpec&) const = default;
};

// Names the tensor that says what each sample weighs in the loss.
inline constexpr std::string_view kSampleWeights = "sample_weights";

// Names the tensor that says which document each token of a sample is of.
inline constexpr std::string_view kDocumentIds = "document_ids";

struct SampleSpec {
  // The tensors of a sample, in the order of Microbatch::tensors.
  std::vector<TensorSpec> tensors;
  // The unit of rates and totals: the number of a sample's targets that can count, and their name.
  std::int64_t targets_per_sample = 1;
  std::string_view unit = "samples";

  // Return the first input, and the first target. There must be one.
  [[nodiscard]] const TensorSpec& input() const;
  [[nodiscard]] const TensorSpec& target() const;
  // Returns whether a sample is a row of tokens, whose targets are the next tokens.
  [[nodiscard]] bool is_language() const;
  // Counts the tokens of such a sample, where the model counts samples.
  void count_tokens();
  // Lets data say what a sample weighs: appends kSampleWeights as an optional target. Leaves a
  // model alone that has a tensor of this name.
  void allow_weights();
};

}  // namespace troika
