#include <sched.h>
#include <troika/launch/cores.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>

namespace troika {
namespace {

constexpr int kMostCores = 1 << 20;

// Whole numbers of `text`, from the front: "0-15" has 0, and 15 behind the dash.
int take_number(std::string_view& text) {
  int number = -1;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Runs of neighbouring cores.
std::vector<CoreList> runs_of(const CoreList& cores) {
  std::vector<CoreList> runs;
  for (const int core : cores) {
    if (runs.empty() || core != runs.back().back() + 1) runs.emplace_back();
    runs.back().push_back(core);
  }
  return runs;
}

// Share `index` of `count`, all but equal and in order.
void add_share(CoreList& share, const CoreList& cores, std::size_t index, std::size_t count) {
  const std::size_t begin = cores.size() * index / count, end = cores.size() * (index + 1) / count;
  share.insert(share.end(), cores.begin() + static_cast<std::ptrdiff_t>(begin),
               cores.begin() + static_cast<std::ptrdiff_t>(end));
}

std::vector<CoreList> shares_of(const CoreList& cores, std::size_t count) {
  std::vector<CoreList> by_runs(count), by_cores(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const CoreList& run : runs_of(cores)) add_share(by_runs[i], run, i, count);
    add_share(by_cores[i], cores, i, count);
  }
  // Runs that are shorter than the ranks are many leave some with nothing.
  const bool all = std::ranges::none_of(by_runs, &CoreList::empty);
  if (all) return by_runs;
  return cores.size() < count ? std::vector<CoreList>(count) : by_cores;
}

}  // namespace

CoreList parse_core_list(std::string_view text) {
  std::set<int> cores;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    const bool ends = text.empty() || text.front() == ',';
    if (!ends || first < 0 || last < first || last >= kMostCores) return {};
    for (int core = first; core <= last; ++core) cores.insert(core);
    if (!text.empty()) text.remove_prefix(1);
  }
  return {cores.begin(), cores.end()};
}

// The mask grows until the kernel's fits: a machine may have more than 1,024 cores.
CoreList allowed_cores() {
  CoreList cores;
  for (int size = 1024; size <= kMostCores && cores.empty(); size *= 4) {
    cpu_set_t* const mask = CPU_ALLOC(static_cast<std::size_t>(size));
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    if (sched_getaffinity(0, bytes, mask) == 0) {
      for (int core = 0; core < size; ++core) {
        if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, mask)) cores.push_back(core);
      }
    }
    CPU_FREE(mask);
  }
  return cores;
}

std::vector<CoreList> divide_cores(const std::vector<CoreList>& nearest, const CoreList& allowed) {
  std::map<CoreList, std::vector<std::size_t>> ranks_near;
  for (std::size_t rank = 0; rank < nearest.size(); ++rank) {
    CoreList usable;
    std::ranges::set_intersection(nearest[rank], allowed, std::back_inserter(usable));
    if (!usable.empty()) ranks_near[usable].push_back(rank);
  }
  std::vector<CoreList> cores(nearest.size());
  for (const auto& [near, ranks] : ranks_near) {
    const std::vector<CoreList> shares = shares_of(near, ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) cores[ranks[i]] = shares[i];
  }
  return cores;
}

}  // namespace troika
