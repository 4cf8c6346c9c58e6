// A decoder-only transformer with pre-normalised residual blocks: GPT-2's choices (Radford et al.
// 2019), Llama's (Touvron et al. 2023), and what lies between. Parameter names and layouts are
// those of Hugging Face's Llama.
#pragma once

#include <troika/models/model.h>

namespace troika {

// Units: the embedding, `layers` blocks, and the head (final norm, output projection, loss).
// Weights start normal with deviation 0.02, those that write to the residual stream 0.02 / sqrt(2
// layers).
[[nodiscard]] Model build_gpt(const ModelRecipe& recipe, std::uint64_t seed);

}  // namespace troika
