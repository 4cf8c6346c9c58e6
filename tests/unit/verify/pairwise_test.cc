// Every pair is there, few rows are, and the choice is always the same.
#include <gtest/gtest.h>
#include <troika/verify/pairwise.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace troika {
namespace {

using Row = std::vector<int>;
using Pair = std::tuple<std::size_t, int, std::size_t, int>;

std::set<Pair> pairs_of(const std::vector<Row>& rows) {
  std::set<Pair> pairs;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = i + 1; j < row.size(); ++j) pairs.insert({i, row[i], j, row[j]});
    }
  }
  return pairs;
}

std::vector<Row> subset(const std::vector<Row>& rows) {
  std::vector<Row> few;
  for (const std::size_t i : pairwise_subset(rows)) few.push_back(rows.at(i));
  return few;
}

// Each of 3 numbers in each of 4 columns, but for rows that some constraint forbids.
std::vector<Row> constrained_rows() {
  std::vector<Row> rows;
  for (int i = 0; i < 81; ++i) {
    Row row = {i % 3, i / 3 % 3, i / 9 % 3, i / 27};
    if (row[0] + row[3] < 4) rows.push_back(std::move(row));
  }
  return rows;
}

TEST(Pairwise, HasEveryPairInFewRows) {
  const std::vector<Row> rows = constrained_rows(), few = subset(rows);
  EXPECT_EQ(pairs_of(few), pairs_of(rows));
  EXPECT_LT(few.size() * 4, rows.size());
}

TEST(Pairwise, IsAscendingAndAlwaysTheSame) {
  const std::vector<Row> rows = constrained_rows();
  const std::vector<std::size_t> few = pairwise_subset(rows);
  EXPECT_TRUE(std::ranges::is_sorted(few));
  EXPECT_EQ(few, pairwise_subset(rows));
}

TEST(Pairwise, LeavesNoRowOutThatHasAPairOfItsOwn) {
  // The same number in two columns is two settings.
  const std::vector<Row> rows = {{0, 1}, {1, 0}, {0, 1}, {1, 1}};
  EXPECT_EQ(pairwise_subset(rows), (std::vector<std::size_t>{0, 1, 3}));
}

TEST(Pairwise, OfNothingIsNothing) {
  EXPECT_TRUE(pairwise_subset({}).empty());
}

}  // namespace
}  // namespace troika
