#include <troika/verify/pairwise.h>

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace troika {
namespace {

// Records which pairs of settings the chosen rows cover.
class PairCoverage {
 public:
  explicit PairCoverage(std::span<const std::vector<int>> rows) {
    for (const std::vector<int>& row : rows) {
      std::vector<std::size_t>& indices = indices_.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::pair setting(i, row[i]);
        const auto known = std::ranges::find(settings_, setting);
        indices.push_back(static_cast<std::size_t>(known - settings_.begin()));
        if (known == settings_.end()) settings_.push_back(setting);
      }
    }
    covered_.assign(settings_.size() * settings_.size(), false);
  }

  // Returns how many pairs of a row are not covered yet.
  [[nodiscard]] int new_pairs_of(std::size_t row) const {
    int count = 0;
    for_each_pair(row, [&](std::size_t pair) { count += covered_[pair] ? 0 : 1; });
    return count;
  }
  void take(std::size_t row) {
    for_each_pair(row, [&](std::size_t pair) { covered_[pair] = true; });
  }

 private:
  template <class Function>
  void for_each_pair(std::size_t row, const Function& function) const {
    const std::vector<std::size_t>& indices = indices_[row];
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (std::size_t j = i + 1; j < indices.size(); ++j) {
        function(indices[i] * settings_.size() + indices[j]);
      }
    }
  }

  std::vector<std::pair<std::size_t, int>> settings_;  // which one, and its number
  std::vector<std::vector<std::size_t>> indices_;      // in settings_, by row
  std::vector<bool> covered_;
};

}  // namespace

std::vector<std::size_t> pairwise_subset(std::span<const std::vector<int>> rows) {
  PairCoverage table(rows);
  // What is new in a row can only become less: a row that is still the best at a second look is.
  using Entry = std::tuple<int, std::size_t>;  // new_pairs, and the row counted from the end
  std::priority_queue<Entry> queue;
  for (std::size_t i = 0; i < rows.size(); ++i)
    queue.emplace(table.new_pairs_of(i), rows.size() - i);
  std::vector<std::size_t> chosen;
  while (!queue.empty()) {
    const auto [new_pairs, from_end] = queue.top();
    queue.pop();
    const std::size_t row = rows.size() - from_end;
    const int still = table.new_pairs_of(row);
    if (still == 0) continue;
    if (still < new_pairs) {
      queue.emplace(still, from_end);
      continue;
    }
    table.take(row);
    chosen.push_back(row);
  }
  std::ranges::sort(chosen);
  return chosen;
}

}  // namespace troika
