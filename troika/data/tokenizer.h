// Text to token ids and back. Bytes need no model. Others are SentencePiece's, loaded from a model
// file or trained by prepare.h, or those of Hugging Face's libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The size of the largest tokenizer file that is read. A model of a million pieces takes some 20
// MB.
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{1} << 30;

// A token that stands in the vocabulary as it is written, such as <|im_end|>.
struct NamedToken {
  std::int32_t id = 0;
  bool strips_left = false, strips_right = false;  // takes the white space beside it
};

// Says what becomes of special tokens that are written in a text.
enum class Specials { kAreTokens, kAreText };

// Const access is thread safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the size of the vocabulary. Ids are in [0, vocab_size()).
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  // Returns the id that stands between two documents.
  [[nodiscard]] virtual std::int64_t separator() const = 0;
  // Returns a number that tells models apart: the hash of the model file; of the name for bytes.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
  // Return what stands before and behind a text that is by itself, as [CLS] and [SEP] do.
  [[nodiscard]] virtual std::span<const std::int32_t> prefix() const { return {}; }
  [[nodiscard]] virtual std::span<const std::int32_t> suffix() const { return {}; }
  // Returns the id that fills up what is shorter than others.
  [[nodiscard]] virtual std::int64_t filler() const { return 0; }
  // Encodes a text. Throws DataError when it cannot be encoded.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Returns the token that is written so; nothing where the vocabulary has none.
  [[nodiscard]] virtual std::optional<NamedToken> token(std::string_view /*text*/) const {
    return std::nullopt;
  }
  // Encodes a text that stands behind a token. A SentencePiece model has control pieces, which no
  // text becomes, and encodes as encode() does. Throws likewise.
  [[nodiscard]] virtual std::vector<std::int32_t> encode_behind(std::string_view text,
                                                                Specials /*specials*/) const {
    return encode(text);
  }
  // Decodes ids. Ids outside the vocabulary add no text, and neither does a separator, except for
  // bytes.
  [[nodiscard]] virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
};

// Opens the tokenizer that a recipe names: "bytes" (an id is a byte, the separator is 0), the path
// of a SentencePiece model, or that of a tokenizer.json, or of a folder with one. Throws DataError
// naming the file when it is missing, no such model, or has no token that ends a text (which serves
// as the separator).
[[nodiscard]] std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

// The files of a tokenizer by their names, in a folder of Hugging Face's libraries.
inline constexpr const char* kTokenizerJson = "tokenizer.json";
inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";

// The files that make up a tokenizer.
struct TokenizerFiles {
  std::string source;  // the path of `model`, for messages
  std::string model;   // the bytes of a SentencePiece model, or of a tokenizer.json
  std::string config;  // of the tokenizer_config.json beside that; empty: there is none
  [[nodiscard]] bool is_json() const;
};

// Reads the files of the tokenizer with this path. Throws DataError.
[[nodiscard]] TokenizerFiles read_tokenizer(const std::string& path);
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFiles& files);
// Opens a tokenizer.json as open_tokenizer() does.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer_json(std::string_view json,
                                                             const std::string& source,
                                                             std::string_view config);

// Opens a model as open_tokenizer() does, from the bytes of a file. Errors name `source`.
[[nodiscard]] std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view model,
                                                            const std::string& source);

// Returns the length of the next part of `text`: all of it up to kMaxPartBytes, else up to the end
// of the last line that fits, else as many whole UTF-8 characters as fit. Long texts are encoded in
// parts. They need not be in memory at once, several threads can share one, and SentencePiece's
// time grows faster than the length of its input. `text` may be cut anywhere behind kMaxPartBytes.
// Encoding part after part gives the same ids as at once.
inline constexpr std::size_t kMaxPartBytes = std::size_t{1} << 16;
[[nodiscard]] std::size_t part_length(std::string_view text, std::size_t max_bytes = kMaxPartBytes);

// Returns the next line to learn from, or nullopt at the end.
using LineReader = std::function<std::optional<std::string>()>;

// Trains a lossless byte-pair model of at most `vocab_size` ids. It does not normalise, runs of
// spaces may be pieces, and every byte has an id. Any valid UTF-8 text hence comes back from decode
// as it was, but for U+2581, by which SentencePiece writes a space. The same lines give the same
// model. Returns the content of a model file. Throws UsageError when vocab_size is too small for
// the characters of the text, DataError when there are no lines to learn from.
[[nodiscard]] std::string train_sentencepiece(const LineReader& next_line, std::int64_t vocab_size);

}  // namespace troika
