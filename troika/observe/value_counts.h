// How often each of some whole numbers came: the updates of a step by their staleness.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace troika {

using ValueCounts = std::map<std::int64_t, std::int64_t>;  // by value, ascending

// Return how many values were counted, their mean, and the largest; 0 where there are none.
[[nodiscard]] std::int64_t total_count(const ValueCounts& counts);
[[nodiscard]] double mean_value(const ValueCounts& counts);
[[nodiscard]] std::int64_t largest_value(const ValueCounts& counts);

void add_counts(ValueCounts& sum, const ValueCounts& counts);

// Returns "0: 41 %, 1: 33 %, 2: 26 %, mean 0.9, largest 2". Of more than eight values it names the
// eight most frequent, in their order, and then "others: 3 %". Requires that there are some.
[[nodiscard]] std::string describe_counts(const ValueCounts& counts);

}  // namespace troika
