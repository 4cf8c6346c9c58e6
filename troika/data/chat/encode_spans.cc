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
      const std::vector<std::int32_t> ids = tokenizer_.encode_behind(text, specials_);
      if (specials_ == Specials::kAreText) refuse_controls(ids);
      std::size_t done = 0;
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        std::size_t end = ids.size();
        if (i + 1 < runs_.size()) {
          const std::size_t next = runs_[i + 1].begin;
          end = tokens_before(ids, done, next - std::min(before, next));
        }
        add(std::span(ids).subspan(done, end - done), runs_[i].is_learned);
        done = end;
      }
    }
    segment_.clear();
    runs_.clear();
    strips_ = false;
  }

  // Returns how many tokens lie wholly in the first `bytes` of what they are of. Tokens say so by
  // the text that they give back: the headers of a template are short, and come back as they are.
  [[nodiscard]] std::size_t tokens_before(std::span<const std::int32_t> ids, std::size_t from,
                                          std::size_t bytes) const {
    std::vector<std::int64_t> first(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(from));
    std::size_t length = tokenizer_.decode(first).size();
    while (length < bytes && first.size() < ids.size()) {
      first.push_back(ids[first.size()]);
      length = tokenizer_.decode(first).size();
    }
    return length > bytes && first.size() > from ? first.size() - 1 : first.size();
  }

  void refuse_controls(std::span<const std::int32_t> ids) const {
    for (const auto& [text, token] : known_) {
      if (!token || std::ranges::find(ids, token->id) == ids.end()) continue;
      throw DataError(
          "its text has " + quote(text) + ", which this tokenizer makes a control token",
          "take it out of the text, or mark the token as special in tokenizer.json");
    }
    if (std::ranges::find(ids, tokenizer_.separator()) == ids.end()) return;
    throw DataError(
        "its text has the token that stands between documents, as this tokenizer reads it",
        "take it out of the text, or mark the token as special in tokenizer.json");
  }

  const Tokenizer& tokenizer_;
  std::map<std::string, std::optional<NamedToken>, std::less<>> known_;
  EncodedSpans made_;
  std::string segment_;
  std::vector<Run> runs_;  // of the segment
  Specials specials_ = Specials::kAreText;
  bool strips_ = false;  // the token before the segment takes its white space
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
