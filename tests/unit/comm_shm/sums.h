// Sums of values that tell whose they are, for tests of collectives.
#pragma once

#include <troika/comm/shm/collective.h>

#include <cstring>
#include <vector>

namespace troika::shm::testing {

// Returns the record of an operation that no recorder keeps.
inline OperationRecord signed_as(std::uint64_t signature) {
  OperationFacts facts;
  facts.signature = signature;
  return {nullptr, 0, facts};
}

using Values = std::vector<std::uint32_t>;

inline std::uint32_t value_of(int member, std::size_t index, std::uint64_t round) {
  return static_cast<std::uint32_t>(index * 7 + static_cast<std::size_t>(member) * 1000003 +
                                    round * 31);
}

inline Values values_of(int member, std::size_t count, std::uint64_t round) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(member, i, round);
  return values;
}

inline Values sums_of(int members, std::size_t count, std::uint64_t round) {
  Values sums(count);
  for (int member = 0; member < members; ++member) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += value_of(member, i, round);
  }
  return sums;
}

inline constexpr auto kReduce = [](std::span<const std::byte* const> views, std::byte* out,
                                   std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint32_t)) {
    std::uint32_t sum = 0;
    for (const std::byte* view : views) {
      std::uint32_t value = 0;
      std::memcpy(&value, view + at, sizeof(value));
      sum += value;
    }
    std::memcpy(out + at, &sum, sizeof(sum));
  }
};

inline const FindSegment kNoSegments = [](int, std::uint32_t, const Deadline&) -> std::byte* {
  throw Broken("there are no segments here");
};

// Memory for all: in one process, plain memory that all members know.
class Arenas {
 public:
  Arenas(int members, std::size_t count)
      : values_(static_cast<std::size_t>(members), Values(count)) {}
  [[nodiscard]] Values& of(int member) { return values_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] FindSegment find() {
    return [this](int member, std::uint32_t, const Deadline&) {
      return reinterpret_cast<std::byte*>(of(member).data());
    };
  }

 private:
  std::vector<Values> values_;
};

inline Contribution contribution(Values& values, bool in_memory_for_all) {
  Contribution own{reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(values[0])};
  if (in_memory_for_all) own.location = Location{1, 0};
  return own;
}

}  // namespace troika::shm::testing
