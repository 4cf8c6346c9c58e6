// A gpt as Hugging Face's Llama, whose names it has, as a Qwen2 or Qwen3, or as their GPT-2.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/hub_form.h>

#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns the form of a model: GPT-2 with norm = "layernorm", else Qwen3 with norms of q and k,
// Qwen2 with biases of q, k and v alone, and Llama. Throws UsageError naming the first choice that
// the form has no counterpart for, and what it would be.
[[nodiscard]] HubForm hub_form_of(const GptOptions& options);

// Returns whether its tensors have the names and shapes of Hugging Face's as they are.
[[nodiscard]] bool has_hub_names(const GptOptions& options);

// Reads a config.json of a Llama, Mistral, Qwen2, Qwen3 or GPT-2; nothing where it is of another
// model. Throws DataError naming `source` and the field that is missing, malformed, or says what a
// gpt does not do.
[[nodiscard]] std::optional<GptOptions> read_hub_config(std::string_view json,
                                                        const std::string& source);

}  // namespace troika
