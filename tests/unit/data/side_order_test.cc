#include <troika/data/sources/table/side_order.h>
#include <unit/data/support.h>

#include <map>
#include <set>

namespace troika {
namespace {

constexpr std::uint64_t kOrderKey = 7;

TEST(SideOrder, IsARowOrderWhereClassesAreNotBalanced) {
  const std::vector<std::int64_t> rows = {5, 0, 3, 11};
  const SideOrder order(kOrderKey, rows, 9);
  const RowOrder same(kOrderKey, rows, 9);
  for (std::int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(order.at(i), same.at(i));
    EXPECT_EQ(order.position(order.at(i)).group, same.position(same.at(i).index).group);
    EXPECT_EQ(order.position(order.at(i)).row, same.position(same.at(i).index).row);
  }
}

// Three classes: 40 rows, 7 rows and 1 row.
TEST(SideOrder, TakesTurnsAmongClassesAndUsesEachRowOfAClassOnceAPass) {
  const std::vector<std::vector<std::int64_t>> rows = {{20, 0, 20}, {0, 7, 0}, {0, 0, 1}};
  const SideOrder order(kOrderKey, rows, 30);
  std::map<std::int64_t, std::map<std::pair<std::size_t, std::int64_t>, int>> seen;
  constexpr std::int64_t kRounds = 40;
  for (std::int64_t i = 0; i < 3 * kRounds; ++i) {
    const SampleRef sample = order.at(i);
    EXPECT_EQ(sample.ordinal, i);
    const RowPosition position = order.position(sample);
    const std::int64_t there = rows[static_cast<std::size_t>(sample.source)][position.group];
    EXPECT_LT(position.row, there);
    ++seen[sample.source][{position.group, position.row}];
  }
  for (const auto& [source, places] : seen) {
    std::int64_t turns = 0;
    for (const auto& [position, count] : places) turns += count;
    EXPECT_EQ(turns, kRounds) << source;
  }
  EXPECT_EQ(seen[0].size(), 40U);
  EXPECT_EQ(seen[1].size(), 7U);
  for (const auto& [position, count] : seen[1]) EXPECT_GE(count, kRounds / 7);
  EXPECT_EQ(seen[2].size(), 1U);
}

TEST(SideOrder, IsAFunctionOfKeyAndOrdinal) {
  const std::vector<std::vector<std::int64_t>> rows = {{20, 9}, {3, 4}};
  const SideOrder order(kOrderKey, rows, 30), same(kOrderKey, rows, 30),
      other(kOrderKey + 1, rows, 30);
  bool differs = false;
  for (std::int64_t i = 99; i >= 0; --i) {
    EXPECT_EQ(order.at(i), same.at(i));
    differs = differs || !(order.at(i) == other.at(i));
  }
  EXPECT_TRUE(differs);
}

TEST(RowOrder, SaysWhichGroupsComeNext) {
  const RowOrder order(kOrderKey, {4, 4, 4, 4}, 8);  // two windows a pass
  std::set<std::size_t> first;
  for (std::int64_t i = 0; i < 8; ++i) first.insert(order.position(order.at(i).index).group);
  const std::vector<std::size_t> next = order.next_groups(0);
  EXPECT_EQ(order.next_groups(7), next);
  EXPECT_EQ(order.window_of(7), 0);
  EXPECT_EQ(order.window_of(8), 8);
  ASSERT_EQ(next.size(), 2U);
  for (const std::size_t group : next) EXPECT_FALSE(first.contains(group));
  std::set<std::size_t> of_next_pass;
  for (std::int64_t i = 16; i < 24; ++i)
    of_next_pass.insert(order.position(order.at(i).index).group);
  const std::vector<std::size_t> behind = order.next_groups(15);
  EXPECT_EQ(std::set(behind.begin(), behind.end()), of_next_pass);
}

}  // namespace
}  // namespace troika
