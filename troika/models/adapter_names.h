// Names of layers that have adapters, where Hugging Face's class of the model calls them otherwise,
// as GPT-2's does.
#pragma once

#include <troika/models/kind.h>

#include <vector>

namespace troika {

// Returns the tensors of Hugging Face's model; none where there is no such model: then names are
// ours.
[[nodiscard]] std::vector<JoinedTensor> hub_tensors_of(const ModelOptions& model);

// Returns the names of the layers that `lora` matches, where these are names of that class, as
// ours. Throws UsageError where one is several layers of ours, as "c_attn" is.
[[nodiscard]] LoraOptions with_own_names(LoraOptions lora, const ModelOptions& model);

}  // namespace troika
