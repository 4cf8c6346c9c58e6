#include <troika/train/pair_cover.h>

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace troika {
namespace {

// Pairs of settings, as positions in a table of which setting has met which.
class PairTable {
 public:
  explicit PairTable(std::span<const std::vector<int>> rows) {
    for (const std::vector<int>& row : rows) {
      std::vector<std::size_t>& places = places_.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::pair setting(i, row[i]);
        const auto known = std::ranges::find(settings_, setting);
        places.push_back(static_cast<std::size_t>(known - settings_.begin()));
        if (known == settings_.end()) settings_.push_back(setting);
      }
    }
    met_.assign(settings_.size() * settings_.size(), false);
  }

  // How many pairs of a row have not met yet.
  [[nodiscard]] int news_of(std::size_t row) const {
    int count = 0;
    for_each_pair(row, [&](std::size_t pair) { count += met_[pair] ? 0 : 1; });
    return count;
  }
  void take(std::size_t row) {
    for_each_pair(row, [&](std::size_t pair) { met_[pair] = true; });
  }

 private:
  template <class Function>
  void for_each_pair(std::size_t row, const Function& function) const {
    const std::vector<std::size_t>& places = places_[row];
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t j = i + 1; j < places.size(); ++j) {
        function(places[i] * settings_.size() + places[j]);
      }
    }
  }

  std::vector<std::pair<std::size_t, int>> settings_;  // which one, and its number
  std::vector<std::vector<std::size_t>> places_;       // in settings_, by row
  std::vector<bool> met_;
};

}  // namespace

std::vector<std::size_t> cover_pairs(std::span<const std::vector<int>> rows) {
  PairTable table(rows);
  // What is new in a row can only become less: a row that is still the best at a second look is.
  using Entry = std::tuple<int, std::size_t>;  // news, and the row counted from the end
  std::priority_queue<Entry> queue;
  for (std::size_t i = 0; i < rows.size(); ++i) queue.emplace(table.news_of(i), rows.size() - i);
  std::vector<std::size_t> chosen;
  while (!queue.empty()) {
    const auto [news, from_end] = queue.top();
    queue.pop();
    const std::size_t row = rows.size() - from_end;
    const int still = table.news_of(row);
    if (still == 0) continue;
    if (still < news) {
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
