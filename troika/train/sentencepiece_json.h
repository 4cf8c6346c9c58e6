// Internal: writes a SentencePiece model as the tokenizer.json of Hugging Face's libraries, which
// load it without further packages.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns tokenizer.json, which gives the same ids, for a model of byte pairs whose text is not
// normalised but for spaces: those that `troika data prepare` trains, and Llama's. `model` is the
// content of the model's file. Returns nothing for other kinds: unigrams, words, rules that
// normalise, pieces of the user's. Source of the fields: sentencepiece_model.proto, ModelProto.
[[nodiscard]] std::optional<std::string> sentencepiece_json(std::string_view model);

}  // namespace troika
