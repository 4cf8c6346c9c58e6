#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/hierarchical/hosts.h>
#include <troika/comm/kinds.h>
#include <troika/comm/shm/attach.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

namespace troika::detail {

Range Range::shared_with(const Range& other) const {
  const std::int64_t low = std::max(begin, other.begin);
  return {low, std::max(low, std::min(end, other.end))};
}

std::vector<Range> ranges_of(std::span<const std::int64_t> counts) {
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

std::vector<std::int64_t> even_counts(std::int64_t elements, int parts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(parts), elements / parts);
  for (std::int64_t i = 0; i < elements % parts; ++i) ++counts[static_cast<std::size_t>(i)];
  return counts;
}

Hosts::Hosts(std::span<const int> numbers) {
  std::map<int, int> hosts;  // by number
  for (std::size_t member = 0; member < numbers.size(); ++member) {
    const int host = hosts.emplace(numbers[member], count()).first->second;
    if (host == count()) members_.emplace_back();
    auto& there = members_[index(host)];
    host_of_.push_back(host);
    local_index_of_.push_back(static_cast<int>(there.size()));
    there.push_back(static_cast<int>(member));
  }
  leaders_ = static_cast<int>(numbers.size());
  for (const auto& there : members_) {
    leaders_ = std::min(leaders_, static_cast<int>(there.size()));
    by_host_.insert(by_host_.end(), there.begin(), there.end());
  }
  in_order_ = std::ranges::is_sorted(by_host_);
}

std::vector<std::int64_t> Hosts::sums(std::span<const std::int64_t> counts) const {
  std::vector<std::int64_t> sums;
  for (const auto& there : members_) {
    sums.push_back(
        std::accumulate(there.begin(), there.end(), std::int64_t{0},
                        [&](std::int64_t sum, int member) { return sum + counts[index(member)]; }));
  }
  return sums;
}

std::vector<int> find_hosts(GroupRendezvous& rendezvous, int index) {
  // A member without shared memory cannot be reached, and so is alone on its host.
  std::optional<shm::Listener> listener;
  if (shm_kind().availability().usable) listener.emplace();
  const auto names = rendezvous.exchange("probe", listener ? listener->name() : "");
  std::string reached;
  for (std::size_t member = 0; member < names.size(); ++member) {
    const bool self = member == static_cast<std::size_t>(index);
    const bool there = self || (listener && !names[member].empty() &&
                                shm::connect_to_listener(names[member]).valid());
    reached += there ? '1' : '0';
  }
  // No listener closes before all members have tried it.
  const auto rows = rendezvous.exchange("reach", reached);
  std::vector<int> numbers;
  for (std::size_t member = 0; member < rows.size(); ++member) {
    const auto shares = [&](std::size_t other) {
      return rows[member].at(other) == '1' && rows[other].at(member) == '1';
    };
    std::size_t first = 0;
    while (!shares(first)) ++first;  // ends at itself
    numbers.push_back(static_cast<int>(first));
  }
  return numbers;
}

}  // namespace troika::detail
