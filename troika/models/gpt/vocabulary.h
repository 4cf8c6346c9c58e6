// The two weights of a GPT that have a row for each token of the vocabulary.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/spec.h>

#include <string>

namespace troika {

inline constexpr const char* kTokenEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kOutputWeight = "lm_head.weight";

// Declares a weight [vocab_size, dim], cut by rows over the tensor axis.
[[nodiscard]] inline ParameterSpec vocabulary_weight(const std::string& name,
                                                     const GptOptions& options,
                                                     const TensorAxis& axis) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {options.vocab_size, options.dim};
  spec.initializer = Initializer::normal(0.02);
  const IndexRange rows = axis.slice_of(options.vocab_size);
  if (axis.split()) spec.slice = Slice{0, rows.first, rows.end()};
  return spec;
}

}  // namespace troika
