#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/chat/encode_spans.h>
#include <troika/data/hub_tokenizer/plugin.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace troika {
namespace {

using hub_tokenizer_plugin::is_blank;

constexpr const char* kControlHint =
    "take it out of the text, or make it special: \"special\": true in tokenizer.json, a control "
    "symbol in a SentencePiece model";

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::string_view text, std::span<const TextSpan> spans)
      : tokenizer_(tokenizer) {
    // All of them first, for what text must not become.
    std::size_t begin = 0;
    for (const TextSpan& span : spans) {
      if (span.is_control) named(text.substr(begin, span.end - begin));
      begin = span.end;
    }
  }

  void add_text(std::string_view text, const TextSpan& span) {
    if (text.empty()) return;
    if (!span.is_control && span.specials == Specials::kAreText) refuse_marks(text);
    if (runs_.empty() || runs_.back().is_learned != span.is_learned) {
      runs_.push_back({segment_.size(), span.is_learned});
    }
    segment_ += text;
    specials_ = span.specials;
  }
  // Returns false where there is no such token.
  bool add_control(std::string_view text, const TextSpan& span) {
    const std::optional<NamedToken>& token = named(text);
    if (!token) return false;
    end_segment(token->strips_left);
    add({&token->id, 1}, span.is_learned);
    strips_ = token->strips_right;
    return true;
  }
  [[nodiscard]] EncodedSpans take() {
    end_segment(false);
    return std::move(made_);
  }

 private:
  struct Run {
    std::size_t begin = 0;  // in the segment
    bool is_learned = false;
  };

  const std::optional<NamedToken>& named(std::string_view text) {
    const auto found = known_.find(text);
    if (found != known_.end()) return found->second;
    return known_.emplace(text, tokenizer_.token(text)).first->second;
  }
  void add(std::span<const std::int32_t> ids, bool is_learned) {
    made_.ids.insert(made_.ids.end(), ids.begin(), ids.end());
    made_.are_learned.insert(made_.are_learned.end(), ids.size(), is_learned ? 1 : 0);
  }

  // Encodes what stands between two control tokens.
  void end_segment(bool strips_behind) {
    std::string_view text = segment_;
    std::size_t before = 0;
    while (strips_ && !text.empty() && is_blank(text.front())) {
      text.remove_prefix(1);
      ++before;
    }
    while (strips_behind && !text.empty() && is_blank(text.back())) text.remove_suffix(1);
    if (!text.empty()) {
      const std::vector<std::int32_t> ids = encode(text);
      if (specials_ == Specials::kAreText) refuse_controls(ids);
      std::size_t done = 0;
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        std::size_t end = ids.size();
        if (i + 1 < runs_.size()) {
          const std::size_t next = runs_[i + 1].begin;
          end = std::max(done, tokens_before(ids, text, next - std::min(before, next)));
        }
        add(std::span(ids).subspan(done, end - done), runs_[i].is_learned);
        done = end;
      }
    }
    segment_.clear();
    runs_.clear();
    strips_ = is_first_ = false;
  }

  // Encodes a text, or the beginning of one, where the segment stands.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
    // A rendered text may begin with text, behind nothing.
    return is_first_ && specials_ == Specials::kAreTokens
               ? tokenizer_.encode(text)
               : tokenizer_.encode_behind(text, specials_);
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const {
    return tokenizer_.decode(std::vector<std::int64_t>(ids.begin(), ids.end()));
  }

  // Encodes the first bytes of a text by themselves, cut where the tokenizer cuts the whole.
  [[nodiscard]] std::vector<std::int32_t> encode_head(std::string_view text,
                                                      std::size_t bytes) const {
    std::vector<std::int32_t> ids;
    while (bytes > 0 && !text.empty()) {
      const std::size_t part = part_length(text);
      const std::vector<std::int32_t> more = encode(text.substr(0, std::min(part, bytes)));
      ids.insert(ids.end(), more.begin(), more.end());
      text.remove_prefix(part);
      bytes -= std::min(part, bytes);
    }
    return ids;
  }

  // Returns how many of a text's tokens lie wholly in its first `bytes`. The tokens of these bytes
  // by themselves are the same but for the last few, where a token may join what they end with and
  // what follows. Of those few alone the texts are compared, each as the tokenizer gives it back:
  // that need not be what was written, as normalizers and U+2581 show.
  [[nodiscard]] std::size_t tokens_before(std::span<const std::int32_t> ids, std::string_view text,
                                          std::size_t bytes) const {
    const std::vector<std::int32_t> alone = encode_head(text, bytes);
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(ids, alone).in1 - ids.begin());
    const std::string rest = decode(std::span(alone).subspan(same));
    const std::span<const std::int32_t> behind = ids.subspan(same);
    // Doubling and halving, because decoding one token after the other takes quadratic time.
    const auto reaches = [&](std::size_t count) {
      return decode(behind.first(count)).starts_with(rest);
    };
    std::size_t less = 0, count = 0;
    while (!reaches(count)) {
      if (count == behind.size()) {
        throw DataError(
            "the tokenizer writes the text before the assistant's words otherwise where they "
            "follow",
            "choose a tokenizer that has the control tokens of the template");
      }
      less = count;
      count = std::min(std::max<std::size_t>(1, count * 2), behind.size());
    }
    while (count > less + 1) {
      const std::size_t middle = less + (count - less) / 2;
      (reaches(middle) ? count : less) = middle;
    }
    const bool joins = count > 0 && decode(behind.first(count)) != rest;
    return same + count - (joins ? 1 : 0);
  }

  // Throws where a content has what the template writes as text: it would read as a turn's bounds.
  void refuse_marks(std::string_view content) const {
    for (const auto& [text, token] : known_) {
      if (token || content.find(text) == std::string_view::npos) continue;
      throw DataError("its text has " + quote(text) +
                          ", by which the template bounds turns, and which is no token of this "
                          "tokenizer",
                      "take it out of the text");
    }
  }

  void refuse_controls(std::span<const std::int32_t> ids) const {
    for (const auto& [text, token] : known_) {
      if (!token || std::ranges::find(ids, token->id) == ids.end()) continue;
      throw DataError(
          "its text has " + quote(text) + ", which this tokenizer makes a control token",
          kControlHint);
    }
    if (std::ranges::find(ids, tokenizer_.separator()) == ids.end()) return;
    throw DataError(
        "its text has the token that stands between documents, as this tokenizer reads it",
        kControlHint);
  }

  const Tokenizer& tokenizer_;
  std::map<std::string, std::optional<NamedToken>, std::less<>> known_;
  EncodedSpans made_;
  std::string segment_;
  std::vector<Run> runs_;  // of the segment
  Specials specials_ = Specials::kAreText;
  bool is_first_ = true;  // nothing stands before the segment
  bool strips_ = false;   // the token before the segment takes its white space
};

}  // namespace

EncodedSpans encode_spans(const Tokenizer& tokenizer, std::string_view text,
                          std::span<const TextSpan> spans) {
  Encoder encoder(tokenizer, text, spans);
  std::size_t begin = 0;
  for (const TextSpan& span : spans) {
    const std::string_view part = text.substr(begin, span.end - begin);
    if (!span.is_control || !encoder.add_control(part, span)) encoder.add_text(part, span);
    begin = span.end;
  }
  return encoder.take();
}

}  // namespace troika
