#include <troika/base/units.h>
#include <troika/observe/value_counts.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr std::size_t kNamed = 8;

// The values to name, ascending: of equally frequent ones the smaller come first.
ValueCounts most_frequent(const ValueCounts& counts) {
  using Entry = std::pair<std::int64_t, std::int64_t>;
  std::vector<Entry> all(counts.begin(), counts.end());
  std::ranges::stable_sort(all, std::greater(), &Entry::second);
  all.resize(std::min(all.size(), kNamed));
  return {all.begin(), all.end()};
}

std::string percent(std::int64_t count, std::int64_t all) {
  const double part = 100 * static_cast<double>(count) / static_cast<double>(all);
  return part < 1 ? "< 1 %" : format_fixed(part, 0) + " %";
}

}  // namespace

std::int64_t total_count(const ValueCounts& counts) {
  std::int64_t total = 0;
  for (const auto& [value, count] : counts) total += count;
  return total;
}

double mean_value(const ValueCounts& counts) {
  double sum = 0;
  for (const auto& [value, count] : counts) sum += static_cast<double>(value * count);
  return counts.empty() ? 0 : sum / static_cast<double>(total_count(counts));
}

std::int64_t largest_value(const ValueCounts& counts) {
  return counts.empty() ? 0 : counts.rbegin()->first;
}

void add_counts(ValueCounts& sum, const ValueCounts& counts) {
  for (const auto& [value, count] : counts) sum[value] += count;
}

std::string describe_counts(const ValueCounts& counts) {
  const std::int64_t all = total_count(counts);
  std::int64_t others = all;
  std::string text;
  for (const auto& [value, count] : most_frequent(counts)) {
    text.append(std::to_string(value)).append(": ").append(percent(count, all)).append(", ");
    others -= count;
  }
  if (others > 0) text += "others: " + percent(others, all) + ", ";
  return text + "mean " + format_fixed(mean_value(counts), 1) + ", largest " +
         std::to_string(largest_value(counts));
}

}  // namespace troika
