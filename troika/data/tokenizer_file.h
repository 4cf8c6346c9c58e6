// The file of a tokenizer, as one of the files that a data set is made of: hosts with other
// tokenizers have other data, and the difference names that file.
#pragma once

#include <troika/data/dataset.h>

#include <cstdint>
#include <optional>
#include <string>

namespace troika {

// Returns the path of the file that a tokenizer is read from: a SentencePiece model, or the
// tokenizer.json of a folder.
[[nodiscard]] std::string tokenizer_path(const std::string& tokenizer);

// Returns the file of a tokenizer with this Tokenizer::fingerprint(), which stands for its content;
// nothing for "bytes".
[[nodiscard]] std::optional<DataFile> tokenizer_file(const std::string& tokenizer,
                                                     std::uint64_t fingerprint);

}  // namespace troika
