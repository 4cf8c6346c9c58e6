#include <gtest/gtest.h>
#include <troika/base/text.h>

#include <array>
#include <string>
#include <vector>

namespace troika {
namespace {

TEST(CountNotUtf8, CountsBytesOfNoCharacter) {
  EXPECT_EQ(count_not_utf8(""), 0U);
  EXPECT_EQ(count_not_utf8("gr\xC3\xBC\xC3\x9F"), 0U);
  EXPECT_EQ(count_not_utf8("gr\xFC\xDF"), 2U);
  EXPECT_EQ(count_not_utf8("\xE2\x82"), 2U);  // cut off
  EXPECT_EQ(count_not_utf8("\xF0\x9F\x90\x8E \x80"), 1U);
}

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("setps", "steps"), 1U);
  EXPECT_EQ(edit_distance("ca", "abc"), 3U);  // no substring edited twice
  EXPECT_EQ(edit_distance("Weight-Decay", "weight_decay"), 0U);
}

TEST(Nearest, FindsATypoAndNothingFarFetched) {
  const std::vector<std::string> keys{"steps", "global_batch_size", "micro_batch_size", "lr",
                                      "eps"};
  EXPECT_EQ(nearest("setps", keys), "steps");
  EXPECT_EQ(nearest("global-batchsize", keys), "global_batch_size");
  EXPECT_EQ(nearest("rl", keys), "lr");
  EXPECT_EQ(nearest("epss", keys), "eps");
  EXPECT_EQ(nearest("colour", keys), std::nullopt);
  EXPECT_EQ(nearest("", keys), std::nullopt);
  EXPECT_EQ(nearest("x", std::array<std::string_view, 1>{"y"}), std::nullopt);
  EXPECT_EQ(nearest(std::string(1 << 22, 'a'), keys), std::nullopt);
  EXPECT_EQ(nearest("steps", std::vector<std::string>{}), std::nullopt);
}

TEST(Join, PutsSeparatorsBetween) {
  EXPECT_EQ(join(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(join(std::array<std::string_view, 3>{"a", "b", "c"}, " | "), "a | b | c");
}

TEST(Quote, KeepsWhatPrints) {
  EXPECT_EQ(quote("plain text"), "'plain text'");
  EXPECT_EQ(quote("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x8E"),
            "'gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x90\x8E'");
}

TEST(Quote, EscapesWhatWouldBreakALineOrATerminal) {
  EXPECT_EQ(quote("a\nb\r\tc"), R"('a\nb\r\tc')");
  EXPECT_EQ(quote("it's \\"), R"('it\'s \\')");
  EXPECT_EQ(quote(std::string_view("\x1B[31m\0\x7F", 7)), R"('\x1b[31m\x00\x7f')");
  EXPECT_EQ(quote("\xC2\x9B"), R"('\xc2\x9b')");          // a control character of Latin-1
  EXPECT_EQ(quote("\xC0\x8A"), R"('\xc0\x8a')");          // overlong newline
  EXPECT_EQ(quote("\xED\xA0\x80"), R"('\xed\xa0\x80')");  // surrogate
  EXPECT_EQ(quote("\xE2\x80\xA8"), R"('\xe2\x80\xa8')");  // line separator
  EXPECT_EQ(quote("\xE2\x80\xAE"), R"('\xe2\x80\xae')");  // right-to-left override
  EXPECT_EQ(quote("\xF4\x90\x80\x80"), R"('\xf4\x90\x80\x80')");
  EXPECT_EQ(quote("\xE2\x82"), R"('\xe2\x82')");  // cut off
}

TEST(Quote, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(quote("abcdef", 6), "'abcdef'");
  EXPECT_EQ(quote("abcdef", 5), "'abcde...'");
  EXPECT_EQ(quote("ab\xE2\x82\xAC", 4), "'ab...'");
  EXPECT_EQ(quote(std::string(1000, 'x')).size(), 85U);
}

TEST(Utf8Stream, ShowsWholeCharacters) {
  const std::string text = "a\xC3\xBC\xE2\x82\xAC\xF0\x9F\x90\x8E\n";
  Utf8Stream stream;
  std::string shown;
  for (const char byte : text) {
    const std::string piece = stream.push({&byte, 1});
    EXPECT_TRUE(piece.empty() || (static_cast<unsigned char>(piece.front()) & 0xC0) != 0x80);
    shown += piece;
    Utf8Stream check;  // what is shown is whole
    EXPECT_EQ(check.push(shown), shown);
    EXPECT_EQ(check.finish(), "");
  }
  EXPECT_EQ(shown, text);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push(text), text);
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  const std::string bad(kReplacementCharacter);
  const auto shown = [](std::string_view text) {
    Utf8Stream stream;
    std::string all = stream.push(text);
    return all + stream.finish();
  };
  EXPECT_EQ(shown("a\xFFz"), "a" + bad + "z");
  EXPECT_EQ(shown("\xE2\x82"), bad + bad);  // the end is missing
  EXPECT_EQ(shown("\xE2(z"), bad + "(z");
  EXPECT_EQ(shown("\x80"), bad);
  EXPECT_EQ(shown("\xC0\xAF"), bad + bad);            // overlong
  EXPECT_EQ(shown("\xED\xA0\x80"), bad + bad + bad);  // a surrogate
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), bad + bad + bad + bad);
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("x"), bad + bad + "x");
}

}  // namespace
}  // namespace troika
