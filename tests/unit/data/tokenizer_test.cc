#include <dlfcn.h>
#include <troika/base/plugin_folder.h>
#include <troika/data/tokenizer.h>
#include <unit/data/support.h>

#include <array>
#include <cstring>
#include <numeric>

namespace troika {
namespace {

using ::testing::HasSubstr;

const char* const kText =
    "#include <vector>\n\nint main() {\n\tstd::vector<int> values(10);\n    return 0;  // "
    "f\xC3\xBCnf \xE2\x82\xAC\n}\r\n";

std::string train(const std::string& text, std::int64_t vocab_size) {
  std::istringstream lines(text);
  return train_sentencepiece(
      [&]() -> std::optional<std::string> {
        std::string line;
        if (!std::getline(lines, line)) return std::nullopt;
        return line;
      },
      vocab_size);
}

std::string round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  return tokenizer.decode(std::vector<std::int64_t>(ids.begin(), ids.end()));
}

TEST(ByteTokenizer, IsTheBytes) {
  const auto bytes = open_tokenizer("bytes");
  EXPECT_EQ(bytes->vocab_size(), 256);
  EXPECT_EQ(bytes->separator(), 0);
  EXPECT_EQ(bytes->encode("a\xFF"), (std::vector<std::int32_t>{97, 255}));
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  EXPECT_EQ(round_trip(*bytes, all), all);
  EXPECT_EQ(bytes->decode(std::vector<std::int64_t>{-1, 'x', 256, 'y'}), "xy");
}

TEST(SentencePiece, TrainsALosslessModel) {
  const std::string model = train(kText, 400);
  const auto tokenizer = load_sentencepiece(model, "m");
  EXPECT_GT(tokenizer->vocab_size(), 259);
  EXPECT_LE(tokenizer->vocab_size(), 400);
  EXPECT_GE(tokenizer->separator(), 0);
  EXPECT_EQ(round_trip(*tokenizer, kText), kText);
  EXPECT_LT(tokenizer->encode(kText).size(), std::string(kText).size());
  // Characters it never saw, blanks in every place, a zero byte.
  const std::string other("  \xE6\x97\xA5\xF0\x9F\x90\x8E \t\n\n  a\0b  ", 20);
  EXPECT_EQ(round_trip(*tokenizer, other), other);
  EXPECT_EQ(tokenizer->decode(std::vector<std::int64_t>{-5, tokenizer->separator(), 1 << 30}), "");
}

TEST(SentencePiece, TrainsTheSameModelAgain) {
  EXPECT_EQ(train(kText, 350), train(kText, 350));
  EXPECT_NE(load_sentencepiece(train(kText, 350), "a")->fingerprint(),
            load_sentencepiece(train(kText, 310), "b")->fingerprint());
}

TEST(SentencePiece, SaysWhatTrainingNeeds) {
  EXPECT_THAT(message_of<UsageError>([] { static_cast<void>(train(kText, 100)); }),
              HasSubstr("needs at least 2"));
  EXPECT_THAT(message_of([] { static_cast<void>(train("", 400)); }), HasSubstr("no text"));
}

TEST(SentencePiece, RefusesWhatIsNoModel) {
  TemporaryFolder folder;
  const std::string model = train(kText, 350);
  for (const std::string& content :
       {std::string(), std::string("text"), model.substr(0, model.size() / 2)}) {
    write_file(folder / "m.model", content);
    EXPECT_THAT(message_of([&] { static_cast<void>(open_tokenizer(folder / "m.model")); }),
                HasSubstr("m.model' is not a SentencePiece model"));
  }
  EXPECT_THAT(message_of([&] { static_cast<void>(open_tokenizer(folder / "none")); }),
              HasSubstr("none'"));
}

// One line each, without the words of the JSON library.
TEST(TokenizerJson, SaysWhatAForeignFileIs) {
  TemporaryFolder folder;
  const auto refusal = [&](const std::string& content) {
    write_file(folder / "tokenizer.json", content);
    return message_of([&] { static_cast<void>(open_tokenizer(folder / "tokenizer.json")); });
  };
  const std::string named = "tokenizer.json' cannot be used: ";
  for (const std::string& content :
       {std::string(), std::string("{\"model\": "), std::string("Entry not found")}) {
    EXPECT_THAT(refusal(content), HasSubstr(named + "it is not JSON"));
  }
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"),
              HasSubstr(named + "it is a pointer of Git LFS"));
  // vocab.json, a list of words, tokenizer_config.json.
  for (const std::string& content :
       {std::string(R"({"a": 0, "b": 1})"), std::string(R"(["a", "b"])"),
        std::string(R"({"model": "bpe", "eos_token": "</s>"})")}) {
    EXPECT_THAT(refusal(content), HasSubstr(named + "it is JSON, and no tokenizer.json"));
  }
  for (const std::string& content :
       {std::string(R"({"model": {}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": 3, "merges": []}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
                        "pre_tokenizer": {"type": null}})")}) {
    EXPECT_THAT(refusal(content),
                testing::AllOf(HasSubstr(named + "it is laid out as none of a kind"),
                               testing::Not(HasSubstr("json.exception"))));
  }
}

// Returns the ids of a text by a tokenizer.json of this model, and a token that ends texts.
std::vector<std::int32_t> ids_by_json(const std::string& model, std::string_view text,
                                      const std::string& sections = "") {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json",
             R"({"added_tokens": [{"id": 9, "content": "</s>", "special": true}], )" + sections +
                 R"("model": )" + model + "}");
  return open_tokenizer(folder / "tokenizer.json")->encode(text);
}

using Ids = std::vector<std::int32_t>;

// The likeliest pieces, as Hugging Face's `tokenizers` cuts them.
TEST(TokenizerJson, CutsIntoTheLikeliestPieces) {
  const std::string model = R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1],
    ["b", -1], ["ab", -1.5], ["ba", -3]]})";
  EXPECT_EQ(ids_by_json(model, "abab"), (Ids{3, 3}));
  EXPECT_EQ(ids_by_json(model, "bab"), (Ids{2, 3}));
  EXPECT_EQ(ids_by_json(model, "axyb"), (Ids{1, 0, 2})) << "unknown ones that follow are one";
}

TEST(TokenizerJson, CutsUnknownCharactersIntoTheirBytes) {
  const std::string model = R"({"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [
    ["<unk>", 0], ["a", -1], ["<0xC3>", -9], ["<0xBC>", -9], ["<0x78>", -9]]})";
  EXPECT_EQ(ids_by_json(model, "a\xC3\xBCxa"), (Ids{1, 2, 3, 4, 1}));
  EXPECT_EQ(ids_by_json(model,
                        "x\xC3\xA4"
                        "a"),
            (Ids{4, 0, 1}))
      << "there is no byte A4";
}

// By rank, and of one rank the leftmost first.
TEST(TokenizerJson, MergesTheLeftmostPairOfTheLowestRankFirst) {
  const std::string model =
      R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2, "ba": 3, "aab": 4}, "merges": ["b a", "a a", "aa b"]})";
  EXPECT_EQ(ids_by_json(model, "aaa"), (Ids{2, 0}));
  EXPECT_EQ(ids_by_json(model, "aaba"), (Ids{2, 3}));
  EXPECT_EQ(ids_by_json(model, "aaab"), (Ids{2, 0, 1}));
  EXPECT_EQ(ids_by_json(model, "aab"), (Ids{4}));
  EXPECT_EQ(ids_by_json(model, "aaaba"), (Ids{2, 0, 3}));
  // Pairs that share a character, far behind the begin of the word.
  const std::string sharing =
      R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4},
    "merges": ["b c", "a b"]})";
  EXPECT_EQ(ids_by_json(sharing, "abc"), (Ids{0, 4}));
  EXPECT_EQ(ids_by_json(sharing, "cccabc"), (Ids{2, 2, 2, 0, 4}));
  EXPECT_EQ(ids_by_json(sharing, "cababcab"), (Ids{2, 3, 0, 4, 3}));
}

// Chinese is written without spaces: each of its characters is a word.
TEST(TokenizerJson, TakesEachIdeographAsAWord) {
  const std::string model = R"({"type": "WordPiece", "unk_token": "?", "vocab": {"?": 0, "a": 1,
    "##b": 2, "\u4e2d": 3, "b": 4, "\u6587": 5}})";
  const std::string bert = R"("normalizer": {"type": "BertNormalizer"},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, )";
  EXPECT_EQ(ids_by_json(model, "ab", bert), (Ids{1, 2}));
  EXPECT_EQ(ids_by_json(model,
                        "a\xE4\xB8\xAD"
                        "b",
                        bert),
            (Ids{1, 3, 4}));
  EXPECT_EQ(ids_by_json(model, "\xE4\xB8\xAD\xE6\x96\x87", bert), (Ids{3, 5}));
}

TEST(PartLength, CutsAtLineEndsThenBetweenCharacters) {
  EXPECT_EQ(part_length("", 4), 0U);
  EXPECT_EQ(part_length("abcd", 4), 4U);
  EXPECT_EQ(part_length("ab\ncd", 4), 3U);
  EXPECT_EQ(part_length("a\nb\ncd", 4), 4U);
  EXPECT_EQ(part_length("abcdef", 4), 4U);
  EXPECT_EQ(part_length("ab\xE2\x82\xAC", 4), 2U);
  EXPECT_EQ(part_length("abc\xC3\xBC", 4), 3U);
  EXPECT_EQ(part_length("\xF0\x9F\x90\x8E\xF0\x9F\x90\x8E", 7), 4U);
  EXPECT_EQ(part_length("\x80\x80\x80\x80\x80\x80\x80\x80", 6), 3U);  // no UTF-8 at all
}

TEST(PartLength, GivesTheSameIdsAsTheWhole) {
  const auto tokenizer = load_sentencepiece(train(kText, 400), "m");
  std::string text;
  while (text.size() < 2 * kMaxPartBytes + 1000) text += kText;
  std::vector<std::int32_t> parts;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = part_length(rest.substr(0, kMaxPartBytes + 1));
    const auto ids = tokenizer->encode(rest.substr(0, length));
    parts.insert(parts.end(), ids.begin(), ids.end());
    rest.remove_prefix(length);
  }
  EXPECT_EQ(parts, tokenizer->encode(text));
  EXPECT_EQ(round_trip(*tokenizer, text), text);
}

// Of a name that SentencePiece has for a larger variable.
TEST(SentencePiece, LeavesLibTorchsMemoryAlone) {
  if (detail::sanitizer_comes_first()) {
    GTEST_SKIP() << "a sanitizer lets no plug-in have a scope of its own";
  }
  void* c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(c10, nullptr);
  const void* level = dlsym(c10, "FLAGS_minloglevel");
  const auto* aborts = static_cast<const char*>(dlsym(c10, "FLAGS_caffe2_use_fatal_for_enforce"));
  ASSERT_NE(level, nullptr);
  ASSERT_NE(aborts, nullptr);
  std::array<char, 64> before{}, after{};
  std::memcpy(before.data(), level, before.size());
  (void)train(kText, 350);
  std::memcpy(after.data(), level, after.size());
  EXPECT_EQ(after, before);
  EXPECT_EQ(*aborts, 0);  // a failed allocation throws
}

}  // namespace
}  // namespace troika
