// The one file that sees SentencePiece's headers.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/data/tokenizer.h>

#include <algorithm>
#include <regex>
#include <unordered_map>

namespace troika {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, const std::string& source)
      : source_(source), fingerprint_(content_hash(model)) {
    if (!processor_.LoadFromSerializedProto(model).ok() || processor_.GetPieceSize() <= 0) {
      throw DataError(quote(source) + " is not a SentencePiece model",
                      "data.tokenizer is \"bytes\" or the path of a SentencePiece model file");
    }
    if (processor_.eos_id() < 0) {
      throw DataError("the SentencePiece model " + quote(source) + " has no end-of-sentence piece",
                      "train it with one (eos_id >= 0): it separates the documents");
    }
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::int64_t separator() const override { return processor_.eos_id(); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids, part_ids;
    while (!text.empty()) {
      const std::size_t length = part_length(text);
      const auto status = processor_.Encode(text.substr(0, length), &part_ids);
      if (!status.ok()) {
        throw DataError("SentencePiece cannot encode a text with " + quote(source_) + ": " +
                        status.ToString());
      }
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
      text.remove_prefix(length);
    }
    return ids;
  }

  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    std::vector<int> known;
    for (const std::int64_t id : ids) {
      if (id >= 0 && id < vocab_size()) known.push_back(static_cast<int>(id));
    }
    std::string text;
    const auto status = processor_.Decode(known, &text);
    if (!status.ok()) {
      throw DataError("SentencePiece cannot decode with " + quote(source_) + ": " +
                      status.ToString());
    }
    return text;
  }

 private:
  std::string source_;
  std::uint64_t fingerprint_;
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands our lines to SentencePiece.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const LineReader& next_line) : next_line_(next_line), line_(next_line()) {}
  [[nodiscard]] bool done() const override { return !line_; }
  void Next() override { line_ = next_line_(); }
  [[nodiscard]] const std::string& value() const override { return *line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  const LineReader& next_line_;
  std::optional<std::string> line_;
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
      {"minloglevel", "3"},  // SentencePiece's log goes to stderr, which is not ours to use
  };
  Lines lines(next_line);
  if (lines.done()) throw DataError("there is no text to train a tokenizer on");
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok()) throw_training_error(vocab_size, status.ToString());
  return model;
}

}  // namespace troika
