// Finds which members of a group share a host: arithmetic for the engine across hosts. Members need
// not be in the order of hosts, and hosts need not have equally many.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class GroupRendezvous;

// [begin, end) of elements.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] Range shared_with(const Range& other) const;
};

// Cuts by counts; the first range begins at 0.
[[nodiscard]] std::vector<Range> ranges_of(std::span<const std::int64_t> counts);
[[nodiscard]] std::vector<std::int64_t> even_counts(std::int64_t elements, int parts);

class Hosts {
 public:
  // `numbers` has a number for each member, equal for those that share a host. Hosts are counted in
  // the order of their first member.
  explicit Hosts(std::span<const int> numbers);

  [[nodiscard]] int count() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int host_of(int member) const { return host_of_[index(member)]; }
  // Returns the position among the members of its host.
  [[nodiscard]] int local_index_of(int member) const { return local_index_of_[index(member)]; }
  // Returns the members of a host, ascending.
  [[nodiscard]] const std::vector<int>& members(int host) const { return members_[index(host)]; }
  // Returns how many members of each host communicate with other hosts: as many as the smallest
  // host has. Each communicates with those of the same local index.
  [[nodiscard]] int leaders() const { return leaders_; }
  // Return the members host by host, and whether that is their own order.
  [[nodiscard]] const std::vector<int>& by_host() const { return by_host_; }
  [[nodiscard]] bool in_order() const { return in_order_; }
  // Returns the sum of its members' counts for each host.
  [[nodiscard]] std::vector<std::int64_t> sums(std::span<const std::int64_t> counts) const;

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::vector<int> host_of_;
  std::vector<int> local_index_of_;
  std::vector<std::vector<int>> members_;
  std::vector<int> by_host_;
  int leaders_ = 0;
  bool in_order_ = false;
};

// Collective. Returns a number for each member, equal for those that can reach each other's memory.
// They find out by trying.
[[nodiscard]] std::vector<int> find_hosts(GroupRendezvous& rendezvous, int index);

}  // namespace troika::detail
