#include <troika/base/hash.h>
#include <troika/data/sources/table/text_tokens.h>

#include <algorithm>

namespace troika {
namespace {

constexpr std::string_view kSpace = " \t\n\v\f\r";

// 0 is left for what fills a row up.
std::int64_t hashed(std::string_view word, std::int64_t size) {
  return 1 + static_cast<std::int64_t>(content_hash(word) % static_cast<std::uint64_t>(size - 1));
}

}  // namespace

TextTokens::TextTokens(const ColumnOptions& column) : size_(column.size) {
  if (column.encode != Encode::kHash) tokenizer_ = open_tokenizer(column.tokenizer);
}

std::vector<std::int64_t> TextTokens::first(std::string_view text, std::int64_t most) const {
  std::vector<std::int64_t> ids;
  const auto room = static_cast<std::size_t>(most);
  const auto frame = [&](std::span<const std::int32_t> part) {
    ids.insert(ids.end(), part.begin(), part.end());
  };
  if (tokenizer_) {
    most = std::max<std::int64_t>(0, most - std::ssize(tokenizer_->suffix()));
    frame(tokenizer_->prefix());
  }
  while (!text.empty() && std::ssize(ids) < most) {
    if (tokenizer_) {
      const std::size_t length = part_length(text);
      for (const std::int32_t id : tokenizer_->encode(text.substr(0, length))) ids.push_back(id);
      text.remove_prefix(length);
    } else {
      text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
      const std::size_t length = std::min(text.find_first_of(kSpace), text.size());
      if (length > 0) ids.push_back(hashed(text.substr(0, length), size_));
      text.remove_prefix(length);
    }
  }
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(most)));
  if (tokenizer_) frame(tokenizer_->suffix());
  ids.resize(std::min(ids.size(), room));
  return ids;
}

std::string TextTokens::fingerprint() const {
  return hex(tokenizer_ ? tokenizer_->fingerprint() : static_cast<std::uint64_t>(size_));
}

}  // namespace troika
