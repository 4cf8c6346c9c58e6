#include <gtest/gtest.h>
#include <troika/base/bytes.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>

#include <algorithm>
#include <set>
#include <string>

namespace troika {
namespace {

// Values of the xxhsum tool (-H1).
TEST(ContentHash, MatchesKnownAnswers) {
  EXPECT_EQ(content_hash(""), 0xEF46DB3751D8E999ULL);
  EXPECT_EQ(content_hash("a"), 0xD24EC4F1A98C6E5BULL);
  EXPECT_EQ(content_hash("abc"), 0x44BC2CF5AD770999ULL);
  EXPECT_EQ(content_hash("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1ULL);
}

std::string random_text(std::size_t size, std::uint64_t trial) {
  const RandomStream draws(stream_key(7, "text"), trial);
  std::string text(size, ' ');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(draws.bits(i));
  return text;
}

TEST(ContentHash, DoesNotDependOnThePieces) {
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    const RandomStream draws(stream_key(7, "pieces"), trial);
    const std::string text = random_text(draws.below(0, 200), trial);
    ContentHash hash(trial);
    std::size_t at = 0;
    for (std::uint64_t i = 1; at < text.size(); ++i) {
      const std::size_t count = std::min<std::size_t>(draws.below(i, 70), text.size() - at);
      hash.update(std::string_view(text).substr(at, count));
      at += count;
    }
    EXPECT_EQ(hash.digest(), content_hash(text, trial));
    EXPECT_EQ(hash.digest(), hash.digest());
  }
}

TEST(ContentHash, ChangesWithEveryBitLengthAndSeed) {
  const std::string text = random_text(67, 0);
  std::set<std::uint64_t> seen{content_hash(text), content_hash(text, 1)};
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string changed = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    seen.insert(content_hash(changed));
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    seen.insert(content_hash(std::string_view(text).substr(0, size)));
  }
  EXPECT_EQ(seen.size(), 2 + 8 * text.size() + text.size());
}

TEST(ContentHash, PrintsAsSixteenDigits) {
  EXPECT_EQ(hex(0), "0000000000000000");
  EXPECT_EQ(hex(0x0123456789ABCDEFULL), "0123456789abcdef");
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(Crc32c, MatchesKnownAnswers) {
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(bytes_of("")), 0U);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xFF'))), 0x62A8AB43U);
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x46DD794EU);
}

TEST(Crc32c, ContinuesFromThePieceBefore) {
  const std::string text = random_text(100, 3);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view view = text;
    EXPECT_EQ(crc32c(bytes_of(view.substr(cut)), crc32c(bytes_of(view.substr(0, cut)))),
              crc32c(bytes_of(view)));
  }
}

}  // namespace
}  // namespace troika
