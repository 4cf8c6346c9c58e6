#include <troika/data/sources/table/row_order.h>
#include <unit/data/support.h>

#include <map>
#include <set>

namespace troika {
namespace {

constexpr std::uint64_t kKey = 7;

std::vector<std::int64_t> pass_of(const RowOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < order.rows(); ++i) {
    const SampleRef sample = order.at(epoch * order.rows() + i);
    EXPECT_EQ(sample.epoch, epoch);
    EXPECT_EQ(sample.ordinal, epoch * order.rows() + i);
    indices.push_back(sample.index);
  }
  return indices;
}

TEST(RowOrder, HasEachRowOnceAPass) {
  const RowOrder order(kKey, {5, 0, 3, 11, 1, 0, 7}, 9);
  EXPECT_EQ(order.rows(), 27);
  std::set<std::vector<std::int64_t>> passes;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<std::int64_t> indices = pass_of(order, epoch);
    EXPECT_EQ(std::set(indices.begin(), indices.end()).size(), 27U);
    passes.insert(indices);
  }
  EXPECT_EQ(passes.size(), 3U);
}

TEST(RowOrder, IsAFunctionOfKeyAndOrdinal) {
  const std::vector<std::int64_t> rows = {5, 3, 11, 1, 7};
  const RowOrder order(kKey, rows, 9), same(kKey, rows, 9), other(kKey + 1, rows, 9);
  const std::vector<std::int64_t> expected = pass_of(order, 4);
  EXPECT_NE(pass_of(other, 4), expected);
  for (std::int64_t i = order.rows() - 1; i >= 0; --i) {  // whatever was asked before
    EXPECT_EQ(same.at(4 * same.rows() + i).index, expected[static_cast<std::size_t>(i)]);
  }
}

// What is computed ahead for one reader must not be taken for what another one asks for.
TEST(RowOrder, IsTheSameForReadersThatJump) {
  const std::vector<std::int64_t> rows = {50, 70, 3, 41};
  const RowOrder order(kKey, rows, 100), same(kKey, rows, 100);
  const std::vector<std::int64_t> expected = pass_of(order, 0);
  const auto expect_at = [&](std::int64_t i) {
    EXPECT_EQ(same.at(i).index, expected[static_cast<std::size_t>(i)]) << i;
  };
  for (std::int64_t i = 0; i < same.rows(); ++i) {
    expect_at(i);
    if (i % 7 == 0) (void)same.at(i + same.rows());  // of another pass
    if (i % 11 == 0) expect_at(same.rows() - 1 - i);
    if (i >= 5) expect_at(i - 5);
  }
}

TEST(RowOrder, FindsTheRowOfAnIndex) {
  const RowOrder order(kKey, {2, 0, 3}, 9);
  std::vector<std::pair<std::size_t, std::int64_t>> places;
  for (std::int64_t i = 0; i < order.rows(); ++i) {
    places.emplace_back(order.position(i).group, order.position(i).row);
  }
  EXPECT_THAT(places, ::testing::ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(2, 0),
                                             std::pair(2, 1), std::pair(2, 2)));
}

// A window holds whole groups: a reader that keeps a window's groups leaves none that it needs.
TEST(RowOrder, VisitsEachGroupInOneStretch) {
  constexpr std::int64_t kGroups = 40, kRows = 10, kInWindow = 4;
  const RowOrder order(kKey, std::vector<std::int64_t>(kGroups, kRows), kInWindow * kRows);
  std::map<std::size_t, std::pair<std::int64_t, std::int64_t>> seen;  // first and last ordinal
  for (std::int64_t i = 0; i < order.rows(); ++i) {
    const std::size_t group = order.position(order.at(i).index).group;
    seen.try_emplace(group, i, i).first->second.second = i;
  }
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kGroups));
  std::set<std::int64_t> windows;
  for (const auto& [group, stretch] : seen) {
    EXPECT_LT(stretch.second - stretch.first, kInWindow * kRows);
    EXPECT_EQ(stretch.first / (kInWindow * kRows), stretch.second / (kInWindow * kRows));
    windows.insert(stretch.first / (kInWindow * kRows));
  }
  EXPECT_EQ(windows.size(), static_cast<std::size_t>(kGroups / kInWindow));
}

// Rows of a window come mixed, not a group after the other.
TEST(RowOrder, MixesTheGroupsOfAWindow) {
  const RowOrder order(kKey, {100, 100, 100, 100}, 400);
  std::set<std::size_t> groups;
  for (std::int64_t i = 0; i < 40; ++i) groups.insert(order.position(order.at(i).index).group);
  EXPECT_EQ(groups.size(), 4U);
}

TEST(RowOrder, TakesAGroupThatIsLargerThanAWindow) {
  const RowOrder order(kKey, {50, 50, 50}, 1);
  const std::vector<std::int64_t> indices = pass_of(order, 0);
  EXPECT_EQ(std::set(indices.begin(), indices.end()).size(), 150U);
}

}  // namespace
}  // namespace troika
