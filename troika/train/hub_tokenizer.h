// The tokenizer of a run as Hugging Face's libraries read it.
#pragma once

#include <troika/recipe/recipe.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace troika {

struct HubTokenizer {
  std::map<std::string, std::string> files;  // contents by name
  std::int64_t separator = 0;                // the id between documents
};

// Returns whether the recipe's data name the tokenizer that made their tokens. Of token ids with
// tokenizer = "bytes", which is the default, anything may have made them.
[[nodiscard]] bool knows_tokenizer(const Recipe& recipe);

// Returns the files of a run's tokenizer: for bytes a tokenizer.json, for another tokenizer.json
// that and what lies beside it, else the SentencePiece model as tokenizer.model, with a
// tokenizer.json where it can be written as one; nothing where the run's tokens stand for no text,
// and for token ids that can be no bytes, because the model's vocabulary is larger, with tokenizer
// = "bytes". Throws DataError naming the tokenizer's file.
[[nodiscard]] std::optional<HubTokenizer> hub_tokenizer_of(const Recipe& recipe);

}  // namespace troika
