#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/text_table.h>

namespace troika {
namespace {

const TextRows kRows = {{"rank", "bytes", "of"}, {"0-3", "1.5 GiB", "a"}, {"11", "7 B"}};

TEST(TextTable, PutsColumnsSideBySide) {
  EXPECT_EQ(text_table(kRows),
            "rank  bytes    of\n"
            "0-3   1.5 GiB  a\n"
            "11    7 B\n");
}

TEST(TextTable, PutsNumbersToTheRight) {
  EXPECT_EQ(text_table(kRows, Align::kNumbers),
            "rank    bytes  of\n"
            "0-3   1.5 GiB   a\n"
            "11        7 B\n");
}

TEST(TextTable, OfNothingIsNothing) {
  EXPECT_EQ(text_table({}), "");
}

}  // namespace
}  // namespace troika
