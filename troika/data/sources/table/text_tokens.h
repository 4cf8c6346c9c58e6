// Internal: the token ids of a text column. A tokenizer makes them, or a hash of each word.
#pragma once

#include <troika/data/sources/table/options.h>
#include <troika/data/tokenizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Const access is thread safe.
class TextTokens {
 public:
  // Opens the tokenizer of a column with as = "text". Throws DataError as open_tokenizer() does.
  explicit TextTokens(const ColumnOptions& column);

  // Returns the first ids of a text, at most `most`, between what the tokenizer has a text stand
  // between, as [CLS] and [SEP]. Throws DataError where it cannot be encoded.
  [[nodiscard]] std::vector<std::int64_t> first(std::string_view text, std::int64_t most) const;
  // Returns the id that fills a row up.
  [[nodiscard]] std::int64_t filler() const { return tokenizer_ ? tokenizer_->filler() : 0; }
  // Returns how many ids there are.
  [[nodiscard]] std::int64_t ids() const { return tokenizer_ ? tokenizer_->vocab_size() : size_; }
  // Returns 16 digits that tell tokenizers apart.
  [[nodiscard]] std::string fingerprint() const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;  // null: words are hashed
  std::int64_t size_;
};

}  // namespace troika
