#include <troika/base/error.h>
#include <troika/parallel/pipeline/cut.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace troika {
namespace {

// The largest cost of a stage, then the sum of their squares: less is better.
using StageCost = std::pair<double, double>;

constexpr StageCost kImpossible = {std::numeric_limits<double>::infinity(), 0};

struct Best {
  StageCost cost_so_far = kImpossible;
  int start = 0;  // of the last stage
};

}  // namespace

std::vector<int> cut_by_cost(std::span<const double> costs, int stages) {
  const int units = static_cast<int>(costs.size());
  check(stages >= 1 && units >= stages, "more stages than units");
  std::vector<double> before(costs.size() + 1, 0.0);
  for (std::size_t i = 0; i < costs.size(); ++i) before[i + 1] = before[i] + costs[i];

  // best[k][n]: the first n units on k stages.
  std::vector<std::vector<Best>> best(static_cast<std::size_t>(stages) + 1,
                                      std::vector<Best>(costs.size() + 1));
  best[0][0].cost_so_far = {0, 0};
  for (std::size_t k = 1; k < best.size(); ++k) {
    for (std::size_t n = k; n <= costs.size(); ++n) {
      for (std::size_t start = k - 1; start < n; ++start) {
        const StageCost& rest = best[k - 1][start].cost_so_far;
        const double cost = before[n] - before[start];
        const StageCost cost_so_far = {std::max(rest.first, cost), rest.second + cost * cost};
        if (cost_so_far < best[k][n].cost_so_far)
          best[k][n] = {cost_so_far, static_cast<int>(start)};
      }
    }
  }

  std::vector<int> cut = {units};
  for (int k = stages; k > 0; --k) {
    const auto n = static_cast<std::size_t>(cut.back());
    cut.push_back(best[static_cast<std::size_t>(k)][n].start);
  }
  std::ranges::reverse(cut);
  return cut;
}

std::vector<int> cut_by_hand(std::span<const std::int64_t> units_of_stage) {
  std::vector<int> cut = {0};
  for (const std::int64_t units : units_of_stage)
    cut.push_back(cut.back() + static_cast<int>(units));
  return cut;
}

}  // namespace troika
