#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/parallel/pipeline/cut.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace troika {
namespace {

using ::testing::ElementsAre;

TEST(CutByCost, CountsEmbeddingAndHead) {
  EXPECT_THAT(cut_by_cost(std::vector<double>{0, 1, 1, 1, 1, 0}, 2), ElementsAre(0, 3, 6));
  // A head as dear as two layers.
  EXPECT_THAT(cut_by_cost(std::vector<double>{0, 1, 1, 1, 1, 2}, 2), ElementsAre(0, 4, 6));
  EXPECT_THAT(cut_by_cost(std::vector<double>{0, 1, 1, 9}, 2), ElementsAre(0, 3, 4));
}

TEST(CutByCost, LeavesNoStageEmpty) {
  EXPECT_THAT(cut_by_cost(std::vector<double>{0, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cut_by_cost(std::vector<double>{5}, 1), ElementsAre(0, 1));
  EXPECT_THROW((void)cut_by_cost(std::vector<double>{1, 1}, 3), InternalError);
}

double largest(const std::vector<double>& costs, const std::vector<int>& cut) {
  double most = 0;
  for (std::size_t i = 0; i + 1 < cut.size(); ++i) {
    most = std::max(most, std::accumulate(costs.begin() + cut[i], costs.begin() + cut[i + 1], 0.0));
  }
  return most;
}

// Every cut of `costs` into `stages`, by which units begin a stage.
double least_by_trying(const std::vector<double>& costs, int stages) {
  const int units = static_cast<int>(costs.size());
  double least = std::numeric_limits<double>::infinity();
  for (unsigned begins = 0; begins < 1U << (units - 1); ++begins) {
    std::vector<int> cut = {0};
    for (int i = 1; i < units; ++i) {
      if ((begins >> (i - 1) & 1U) != 0) cut.push_back(i);
    }
    cut.push_back(units);
    if (static_cast<int>(cut.size()) == stages + 1) least = std::min(least, largest(costs, cut));
  }
  return least;
}

TEST(CutByCost, IsTheBestThereIs) {
  const RandomStream random(stream_key(1, "costs"));
  std::uint64_t draw = 0;
  for (int units = 1; units <= 9; ++units) {
    for (int stages = 1; stages <= units; ++stages) {
      std::vector<double> costs(static_cast<std::size_t>(units));
      for (double& cost : costs) cost = static_cast<double>(random.below(draw++, 7));
      const std::vector<int> cut = cut_by_cost(costs, stages);
      ASSERT_EQ(cut.size(), static_cast<std::size_t>(stages) + 1);
      ASSERT_EQ(cut.front(), 0);
      ASSERT_EQ(cut.back(), units);
      ASSERT_TRUE(std::ranges::adjacent_find(cut, std::greater_equal<>()) == cut.end());
      ASSERT_DOUBLE_EQ(largest(costs, cut), least_by_trying(costs, stages));
    }
  }
}

TEST(CutByHand, AddsUp) {
  EXPECT_THAT(cut_by_hand(std::vector<std::int64_t>{2, 1, 3}), ElementsAre(0, 2, 3, 6));
}

}  // namespace
}  // namespace troika
