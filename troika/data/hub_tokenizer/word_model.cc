#include <troika/data/hub_tokenizer/unicode.h>
#include <troika/data/hub_tokenizer/word_model.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

int unknown_of(const Vocabulary& vocabulary, const nlohmann::json& model) {
  const std::string token = model.at("unk_token");
  const auto found = vocabulary.find(token);
  if (found != vocabulary.end()) return found->second;
  throw std::runtime_error("its unk_token \"" + token + "\" is not of its vocabulary");
}

class WholeWords final : public WordModel {
 public:
  explicit WholeWords(const nlohmann::json& model)
      : vocabulary_(model.at("vocab").get<Vocabulary>()),
        unknown_(unknown_of(vocabulary_, model)) {}

  void encode(std::string_view word, std::vector<int>& ids) const override {
    const auto found = vocabulary_.find(std::string(word));
    ids.push_back(found == vocabulary_.end() ? unknown_ : found->second);
  }
  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  int unknown_;
};

class WordPieces final : public WordModel {
 public:
  explicit WordPieces(const nlohmann::json& model)
      : vocabulary_(model.at("vocab").get<Vocabulary>()),
        unknown_(unknown_of(vocabulary_, model)),
        prefix_(model.value("continuing_subword_prefix", std::string("##"))),
        most_(model.value("max_input_chars_per_word", std::size_t{100})) {}

  void encode(std::string_view word, std::vector<int>& ids) const override {
    const std::size_t before = ids.size();
    if (characters_of(word).size() > most_) return ids.push_back(unknown_);
    for (std::size_t begin = 0; begin < word.size();) {
      const std::size_t end = longest(word, begin, ids);
      if (end == begin) {  // the whole word is unknown
        ids.resize(before);
        return ids.push_back(unknown_);
      }
      begin = end;
    }
  }
  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  // Appends the longest piece that begins there, and returns its end.
  std::size_t longest(std::string_view word, std::size_t begin, std::vector<int>& ids) const {
    const auto goes_on = [&](std::size_t at) {
      return at < word.size() && (static_cast<unsigned char>(word[at]) & 0xC0) == 0x80;
    };
    for (std::size_t end = word.size(); end > begin; --end) {
      if (goes_on(end)) continue;
      const auto found = vocabulary_.find((begin > 0 ? prefix_ : "") +
                                          std::string(word.substr(begin, end - begin)));
      if (found == vocabulary_.end()) continue;
      ids.push_back(found->second);
      return end;
    }
    return begin;
  }

  Vocabulary vocabulary_;
  int unknown_;
  std::string prefix_;
  std::size_t most_;  // characters of a word
};

class Unigrams final : public WordModel {
 public:
  explicit Unigrams(const nlohmann::json& model)
      : unknown_(model.value("unk_id", nlohmann::json()).is_null() ? -1
                                                                   : model.at("unk_id").get<int>()),
        falls_back_(model.value("byte_fallback", false)) {
    double least = 0;
    for (const auto& piece : model.at("vocab")) {
      const std::string text = piece.at(0);
      vocabulary_.emplace(text, static_cast<int>(scores_.size()));
      scores_.push_back(piece.at(1));
      least = std::min(least, scores_.back());
      longest_ = std::max(longest_, text.size());
    }
    unknown_score_ = least - kUnknownPenalty;
    if (unknown_ >= static_cast<int>(scores_.size())) {
      throw std::runtime_error("its unk_id is not of its vocabulary");
    }
  }

  void encode(std::string_view word, std::vector<int>& ids) const override {
    const std::vector<Best> best = likeliest(word);
    std::vector<std::size_t> ends;
    for (std::size_t end = word.size(); end > 0; end = best[end].begin) ends.push_back(end);
    bool was_unknown = false;
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      const Best& piece = best[*end];
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else if (!was_unknown || falls_back_) {
        add_unknown(word.substr(piece.begin, *end - piece.begin), ids);
      }
      was_unknown = piece.id < 0;
    }
  }
  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  static constexpr double kUnknownPenalty = 10;

  struct Best {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t begin = 0;
    int id = -1;
  };

  // The best way to each place (Viterbi).
  [[nodiscard]] std::vector<Best> likeliest(std::string_view word) const {
    std::vector<Best> best(word.size() + 1);
    best[0].score = 0;
    for (std::size_t begin = 0; begin < word.size(); begin += utf8_length(word[begin])) {
      const std::size_t one = std::min(utf8_length(word[begin]), word.size() - begin);
      bool has_one = false;
      for (std::size_t length = 1; length <= std::min(longest_, word.size() - begin); ++length) {
        const auto found = vocabulary_.find(std::string(word.substr(begin, length)));
        if (found == vocabulary_.end()) continue;
        has_one |= length == one;
        offer(best, begin, begin + length, found->second,
              scores_[static_cast<std::size_t>(found->second)]);
      }
      if (!has_one) offer(best, begin, begin + one, -1, unknown_score_);
    }
    return best;
  }
  static void offer(std::vector<Best>& best, std::size_t begin, std::size_t end, int id,
                    double score) {
    const double whole = best[begin].score + score;
    if (whole > best[end].score) best[end] = {whole, begin, id};
  }

  void add_unknown(std::string_view text, std::vector<int>& ids) const {
    const std::size_t before = ids.size();
    for (const char byte : falls_back_ ? text : std::string_view()) {
      const auto found = vocabulary_.find(byte_token(static_cast<unsigned char>(byte)));
      if (found != vocabulary_.end()) ids.push_back(found->second);
    }
    if (falls_back_ && ids.size() == before + text.size()) return;
    ids.resize(before);
    if (unknown_ < 0)
      throw std::runtime_error("its vocabulary lacks a character, and has no unk_id");
    ids.push_back(unknown_);
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  int unknown_;
  bool falls_back_;
  double unknown_score_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace

std::string byte_token(unsigned char byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

std::unique_ptr<WordModel> make_word_pieces(const nlohmann::json& model) {
  return std::make_unique<WordPieces>(model);
}

std::unique_ptr<WordModel> make_whole_words(const nlohmann::json& model) {
  return std::make_unique<WholeWords>(model);
}

std::unique_ptr<WordModel> make_unigrams(const nlohmann::json& model) {
  return std::make_unique<Unigrams>(model);
}

std::unique_ptr<WordModel> make_word_model(const nlohmann::json& model) {
  // Files of earlier versions have no type where it is BPE.
  const std::string type = model.value("type", std::string("BPE"));
  if (type == "BPE") return make_byte_pairs(model);
  if (type == "WordPiece") return make_word_pieces(model);
  if (type == "WordLevel") return make_whole_words(model);
  if (type == "Unigram") return make_unigrams(model);
  throw std::runtime_error("its model is of type \"" + type + "\", which troika does not have");
}

}  // namespace troika::hub_tokenizer_plugin
