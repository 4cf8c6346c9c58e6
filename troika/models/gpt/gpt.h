// A decoder-only transformer with pre-normalised residual blocks: GPT-2's choices (Radford et al.
// 2019), Llama's (Touvron et al. 2023), and what lies between. Parameter names and layouts are
// those of Hugging Face's Llama.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/model.h>

namespace troika {

// Builds the units: the embedding, `layers` blocks, and the head (final norm, output projection,
// loss). Weights start normal with deviation 0.02, those that write to the residual stream 0.02 /
// sqrt(2 layers).
//
// Over a tensor axis the embedding and the head are split by the vocabulary, attention by heads,
// and feed-forward layers by their inner width, all as evenly as possible. This rank's slice of the
// tokens flows between units. There are no more tensor ranks than heads.
[[nodiscard]] Model build_gpt(const GptOptions& options, std::uint64_t seed,
                              const ModelLayout& layout = {});

}  // namespace troika
