// Tokenizers of SentencePiece, by its plug-in.
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/data/sentencepiece/plugin.h>
#include <troika/data/tokenizer.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <unordered_map>
#include <utility>

namespace troika {
namespace {

// Loaded once, when a tokenizer is needed first.
const sentencepiece_plugin::SentencePiecePlugin& plugin() {
  static const sentencepiece_plugin::SentencePiecePlugin& loaded =
      []() -> const sentencepiece_plugin::SentencePiecePlugin& {
    const auto path = detail::find_plugin(sentencepiece_plugin::kFile);
    if (!path) {
      throw UsageError(
          "the plug-in " + std::string(sentencepiece_plugin::kFile) + " is missing",
          "install troika again, or name its folder in " + std::string(detail::kPluginsVariable));
    }
    const auto entry = reinterpret_cast<sentencepiece_plugin::PluginEntry>(
        detail::load_plugin(*path, sentencepiece_plugin::kPluginEntry, detail::PluginScope::kOwn));
    return *entry();
  }();
  return loaded;
}

sentencepiece_plugin::TakeText put_into(std::string& text) {
  return [&text](std::string_view taken) { text = taken; };
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, const std::string& source)
      : source_(source), fingerprint_(content_hash(model)), model_(plugin().load(model)) {
    if (!model_) {
      throw DataError(quote(source) + " is not a SentencePiece model",
                      "data.tokenizer is \"bytes\" or the path of a SentencePiece model file");
    }
    if (model_->eos_id() < 0) {
      throw DataError("the SentencePiece model " + quote(source) + " has no end-of-sentence piece",
                      "train it with one (eos_id >= 0): it separates the documents");
    }
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return model_->vocab_size(); }
  [[nodiscard]] std::int64_t separator() const override { return model_->eos_id(); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    std::string error;
    const auto append = [&](std::span<const int> part) {
      ids.insert(ids.end(), part.begin(), part.end());
    };
    while (!text.empty()) {
      const std::size_t length = part_length(text);
      if (!model_->encode(text.substr(0, length), append, put_into(error))) {
        throw DataError("SentencePiece cannot encode a text with " + quote(source_) + ": " + error);
      }
      text.remove_prefix(length);
    }
    return ids;
  }

  [[nodiscard]] std::optional<NamedToken> token(std::string_view text) const override {
    const int id = model_->id_of(text);
    return id < 0 ? std::nullopt : std::optional(NamedToken{id});
  }

  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    std::vector<int> known;
    for (const std::int64_t id : ids) {
      if (id >= 0 && id < vocab_size()) known.push_back(static_cast<int>(id));
    }
    std::string text, error;
    if (!model_->decode(known, put_into(text), put_into(error))) {
      throw DataError("SentencePiece cannot decode with " + quote(source_) + ": " + error);
    }
    return text;
  }

 private:
  std::string source_;
  std::uint64_t fingerprint_;
  std::unique_ptr<sentencepiece_plugin::Model> model_;
};

[[noreturn]] void throw_training_error(std::int64_t vocab_size, std::string reason) {
  const std::string message =
      "SentencePiece cannot train a vocabulary of " + std::to_string(vocab_size);
  // "Vocabulary size is smaller than required_chars. 300 vs 338."
  std::smatch match;
  if (std::regex_search(reason, match, std::regex("required_chars. [0-9]+ vs ([0-9]+)"))) {
    throw UsageError(message + ": this text needs at least " + match.str(1),
                     "256 ids go to bytes, 3 to control pieces, one to each common character; "
                     "choose a larger --vocab-size");
  }
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  throw DataError(message + ": " + reason);
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view model, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(model, source);
}

std::string train_sentencepiece(const LineReader& next_line, std::int64_t vocab_size) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"hard_vocab_limit", "false"},  // a small text may not have that many pairs
      {"character_coverage", "0.9995"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", "65536"},
      {"num_threads", "1"},
  };
  std::optional<std::string> line = next_line();
  if (!line) throw DataError("there is no text to train a tokenizer on");
  bool is_first = true;
  const auto lines = [&]() -> const std::string* {
    if (!std::exchange(is_first, false)) line = next_line();
    return line ? &*line : nullptr;
  };
  std::string model, error;
  if (!plugin().train(options, lines, put_into(model), put_into(error))) {
    throw_training_error(vocab_size, error);
  }
  return model;
}

}  // namespace troika
