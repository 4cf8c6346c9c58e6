#include <gtest/gtest.h>
#include <troika/observe/value_counts.h>

namespace troika {
namespace {

TEST(ValueCounts, TotalMeanAndLargest) {
  const ValueCounts counts = {{0, 3}, {2, 1}, {7, 1}};
  EXPECT_EQ(total_count(counts), 5);
  EXPECT_DOUBLE_EQ(mean_value(counts), 9. / 5);
  EXPECT_EQ(largest_value(counts), 7);
  EXPECT_EQ(total_count({}), 0);
  EXPECT_EQ(mean_value({}), 0);
  EXPECT_EQ(largest_value({}), 0);
}

TEST(ValueCounts, AddUpByValue) {
  ValueCounts sum = {{0, 3}, {2, 1}};
  add_counts(sum, {{1, 5}, {2, 4}});
  EXPECT_EQ(sum, (ValueCounts{{0, 3}, {1, 5}, {2, 5}}));
}

TEST(ValueCounts, AreToldInParts) {
  EXPECT_EQ(describe_counts({{0, 40}, {1, 33}, {2, 27}}),
            "0: 40 %, 1: 33 %, 2: 27 %, mean 0.9, largest 2");
  EXPECT_EQ(describe_counts({{0, 999}, {30, 1}}), "0: 100 %, 30: < 1 %, mean 0.0, largest 30");
}

TEST(ValueCounts, OnlyTheEightMostFrequentAreNamed) {
  ValueCounts counts;
  for (int value = 0; value < 12; ++value) counts[value] = value < 4 ? 1 : 12;
  EXPECT_EQ(describe_counts(counts),
            "4: 12 %, 5: 12 %, 6: 12 %, 7: 12 %, 8: 12 %, 9: 12 %, 10: 12 %, 11: 12 %, "
            "others: 4 %, mean 7.3, largest 11");
}

}  // namespace
}  // namespace troika
