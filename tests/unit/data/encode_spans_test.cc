// Where the tokens of an answer begin, for tokenizers that change the text before it.
#include <troika/data/chat/encode_spans.h>
#include <unit/data/character_tokenizer.h>
#include <unit/data/support.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

// A tokenizer that counts the ids which it decodes.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  [[nodiscard]] std::int64_t vocab_size() const override { return tokenizer_.vocab_size(); }
  [[nodiscard]] std::int64_t separator() const override { return tokenizer_.separator(); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    return tokenizer_.encode(text);
  }
  [[nodiscard]] std::optional<NamedToken> token(std::string_view text) const override {
    return tokenizer_.token(text);
  }
  [[nodiscard]] std::vector<std::int32_t> encode_behind(std::string_view text,
                                                        Specials specials) const override {
    return tokenizer_.encode_behind(text, specials);
  }
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    decoded_ += ids.size();
    return tokenizer_.decode(ids);
  }
  [[nodiscard]] std::size_t decoded() const { return decoded_; }

 private:
  const Tokenizer& tokenizer_;
  mutable std::size_t decoded_ = 0;
};

// As Llama 2's: a space before each text, spaces as U+2581, and no tokens for instructions.
std::string prepending_json(const std::vector<std::string>& merges) {
  auto json = nlohmann::json::parse(characters_json({"<|endoftext|>", "<s>", "</s>"}));
  auto& vocabulary = json["model"]["vocab"];
  vocabulary["\u2581"] = vocabulary[" "];
  vocabulary.erase(" ");
  const std::int64_t first = json["added_tokens"].size() + vocabulary.size();
  vocabulary["\u00e9"] = first;
  vocabulary["]\u2581"] = first + 1;
  json["model"]["merges"] = merges;
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFKC"}},
        {{"type", "Prepend"}, {"prepend", "\u2581"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return json.dump();
}

// Returns what is learned of an answer "yes" to a question. Finding it has to take linear time.
std::string learned_of(const Tokenizer& tokenizer, const std::string& question) {
  const std::vector<ChatMessage> messages = {{"user", question}, {"assistant", "yes"}};
  const ChatText chat = render_chat(ChatTemplate::kMistral, messages);
  const CountingTokenizer counting(tokenizer);
  const EncodedSpans encoded = encode_spans(counting, chat.text, chat.spans);
  EXPECT_LT(counting.decoded(), 100U);
  std::string learned;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.are_learned[i] == 0) continue;
    const std::int64_t id = encoded.ids[i];
    learned += tokenizer.token("</s>")->id == id ? "</s>" : tokenizer.decode({&id, 1});
  }
  return learned;
}

// Where an answer begins does not depend on how the tokenizer gives the question back.
TEST(EncodeSpans, FindsAnswersBehindTextThatComesBackOtherwise) {
  std::string lines;
  while (lines.size() < 3 * kMaxPartBytes) lines.append(60'000, 'q').append("\n");
  const std::vector<std::string> questions = {"plain",
                                              "a\u2581b\u2581c\u2581d\u2581e",
                                              "\uFB01\uFB01\uFB01\uFB01\uFB01\uFB01",
                                              "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301",
                                              "  \u2581  ",
                                              lines};
  const auto apart = load_tokenizer_json(prepending_json({}), "x", "");
  const auto joined = load_tokenizer_json(prepending_json({"] \u2581"}), "x", "");
  for (const std::string& question : questions) {
    // The space before the answer is a token, which the decoder strips where it stands first.
    EXPECT_EQ(learned_of(*apart, question), "yes</s>");
    EXPECT_EQ(learned_of(*joined, question), "] yes</s>");
  }
}

// A text that begins with text has the tokens of one that stands behind nothing.
TEST(EncodeSpans, EncodesTheBeginningOfARenderedTextAsTheFirst) {
  auto json =
      nlohmann::json::parse(characters_json({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}));
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"split", false}};
  const auto tokenizer = load_tokenizer_json(json.dump(), "x", "");
  const std::string text = "ab<|im_start|>assistant\ncd<|im_end|>";
  const auto spans = spans_of_rendered(ChatTemplate::kChatml, text);
  const EncodedSpans encoded = encode_spans(*tokenizer, text, spans);
  const std::int32_t space = tokenizer->token("_")->id;
  EXPECT_EQ(encoded.ids.front(), space);
  EXPECT_EQ(std::ranges::count(encoded.ids, space), 1);
}

}  // namespace
}  // namespace troika
