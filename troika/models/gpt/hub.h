// A gpt as Hugging Face's Llama, whose names it has, or as their GPT-2.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/hub_form.h>

#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns the form of a model: Llama with norm = "rmsnorm", GPT-2 with norm = "layernorm". Throws
// UsageError naming the first choice that the form has no counterpart for, and what it would be.
[[nodiscard]] HubForm hub_form_of(const GptOptions& options);

// Returns whether its tensors have the names and shapes of Hugging Face's as they are.
[[nodiscard]] bool has_hub_names(const GptOptions& options);

// Reads a config.json of a Llama or a GPT-2; nothing where it is of another model. Throws DataError
// naming `source` and the field that is missing, malformed, or says what a gpt does not do.
[[nodiscard]] std::optional<GptOptions> read_hub_config(std::string_view json,
                                                        const std::string& source);

}  // namespace troika
