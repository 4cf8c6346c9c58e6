#include <gtest/gtest.h>
#include <troika/base/short_copy.h>

#include <string>

namespace troika {
namespace {

TEST(ShortCopy, CopiesEverySizeAndNothingBeside) {
  constexpr std::size_t kMost = 100;
  std::string from(kMost, '\0');
  for (std::size_t i = 0; i < kMost; ++i) from[i] = static_cast<char>('!' + i % 90);
  for (std::size_t size = 0; size <= kMost; ++size) {
    std::string to(kMost + 2, '\0');
    // Memory of just that size: the sanitizers see what is read beyond it.
    const std::string exact = from.substr(0, size);
    EXPECT_EQ(copy_short(std::span(to).subspan(1), exact), size);
    EXPECT_EQ(to, '\0' + exact + std::string(kMost + 1 - size, '\0')) << size << " bytes";
  }
}

TEST(ShortCopy, CutsWhatDoesNotFit) {
  std::string to = "......";
  EXPECT_EQ(copy_short(std::span(to).first(4), "12345"), 4U);
  EXPECT_EQ(to, "1234..");
  EXPECT_EQ(copy_short({}, "1"), 0U);
}

}  // namespace
}  // namespace troika
