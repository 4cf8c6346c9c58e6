// Collectives that are checked in every element, for tests on several ranks: of any size and type,
// with tensors in memory of any kind.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ranks/comm_inputs.h"
#include "ranks/rank_helper.h"

namespace troika::test {

// Where tensors lie: all in ordinary memory, all in memory of Group::allocate, or by turns, so that
// members of the same operation have both.
class Memory {
 public:
  enum class Kind { kOrdinary, kGroup, kMixed };

  explicit Memory(Group group, Kind kind = Kind::kOrdinary)
      : group_(std::move(group)),
        kind_(kind),
        arena_(kind == Kind::kOrdinary ? at::Tensor() : group_.allocate(kArena)) {}

  [[nodiscard]] const Group& group() const { return group_; }

  // A tensor with these values, until the next operation begins.
  [[nodiscard]] at::Tensor of(const at::Tensor& values) {
    const bool turn = (++given_ + group_.rank()) % 2 == 0;
    if (kind_ == Kind::kOrdinary || (kind_ == Kind::kMixed && turn)) return values.clone();
    const auto bytes = static_cast<std::int64_t>(values.nbytes());
    const at::Tensor place = arena_.narrow(0, used_, bytes);
    used_ += bytes + kGap - bytes % kGap;
    EXPECT_LE(used_, static_cast<std::int64_t>(kArena));
    const at::Tensor tensor = place.view(values.scalar_type()).view(values.sizes());
    return tensor.copy_(values);
  }
  // Before the tensors of an operation.
  void begin() { used_ = kGap; }

 private:
  static constexpr std::size_t kArena = std::size_t{32} << 20;
  static constexpr std::int64_t kGap =
      8;  // tensors begin at multiples of their elements' size only

  Group group_;
  Kind kind_;
  at::Tensor arena_;
  std::int64_t used_ = 0;
  int given_ = 0;
};

// Member i has i + 1 shares of about `elements`; the second has none.
inline std::vector<std::int64_t> uneven_counts(int ranks, std::int64_t elements) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank == 1 ? 0 : (rank + 1) * elements / 3);
  }
  return counts;
}

inline std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

inline at::Tensor part_of(const at::Tensor& whole, const std::vector<std::int64_t>& counts,
                          int member) {
  const std::int64_t start =
      std::accumulate(counts.begin(), counts.begin() + member, std::int64_t{0});
  return whole.narrow(0, start, counts[static_cast<std::size_t>(member)]);
}

// As one rank after the other gives it; where the engine reduces host by host, nearly.
inline bool as_reduced(const Rank& rank, const at::Tensor& result, const at::Tensor& expected) {
  return rank.reduces_in_order() ? identical(result, expected)
                                 : nearly(result, expected, rank.size());
}

inline void check_all_reduce(const Rank& rank, Memory& memory, std::int64_t elements,
                             at::ScalarType dtype, ReduceOp op) {
  const Group& group = memory.group();
  memory.begin();
  const at::Tensor tensor = memory.of(input_of(group.rank(), elements, dtype));
  group.all_reduce(tensor, op, Rank::call("all_reduce")).wait();
  EXPECT_TRUE(
      as_reduced(rank, tensor, serial_reduce(all_inputs(group.size(), elements, dtype), op)))
      << elements << " of " << dtype << ", operation " << static_cast<int>(op);
}

inline void check_reduce_scatter(const Rank& rank, Memory& memory,
                                 const std::vector<std::int64_t>& counts, at::ScalarType dtype,
                                 ReduceOp op) {
  const Group& group = memory.group();
  const std::int64_t elements = sum(counts);
  const at::Tensor reduced = serial_reduce(all_inputs(group.size(), elements, dtype), op);
  const at::Tensor expected = part_of(reduced, counts, group.rank());
  const at::Tensor before = input_of(group.rank(), elements, dtype);
  memory.begin();
  const at::Tensor input = memory.of(before);
  const at::Tensor output = memory.of(at::zeros_like(expected));
  group.reduce_scatter(output, input, op, Rank::call("reduce_scatter"), counts).wait();
  EXPECT_TRUE(as_reduced(rank, output, expected))
      << elements << " of " << dtype << ", operation " << static_cast<int>(op);
  EXPECT_TRUE(identical(input, before));
  // Into this member's part of the input.
  group
      .reduce_scatter(part_of(input, counts, group.rank()), input, op,
                      Rank::call("reduce_scatter in place"), counts)
      .wait();
  EXPECT_TRUE(identical(part_of(input, counts, group.rank()), output));
}

inline void check_gathering(Memory& memory, std::int64_t elements, at::ScalarType dtype) {
  const Group& group = memory.group();
  const auto counts = uneven_counts(group.size(), elements);
  const at::Tensor everything = input_of(99, sum(counts), dtype);
  const at::Tensor own_part = part_of(everything, counts, group.rank());
  memory.begin();
  const at::Tensor output = memory.of(at::zeros_like(everything));
  group.all_gather(output, memory.of(own_part), Rank::call("uneven"), counts).wait();
  EXPECT_TRUE(identical(output, everything)) << elements << " of " << dtype;
  // From this member's part of the output.
  output.zero_();
  part_of(output, counts, group.rank()).copy_(own_part);
  group.all_gather(output, part_of(output, counts, group.rank()), Rank::call("in place"), counts)
      .wait();
  EXPECT_TRUE(identical(output, everything));

  memory.begin();
  const at::Tensor own = memory.of(input_of(group.rank(), elements, dtype));
  const at::Tensor equal = memory.of(at::zeros({group.size(), elements}, dtype));
  group.all_gather(equal, own, Rank::call("equal parts")).wait();
  EXPECT_TRUE(identical(equal, at::stack(all_inputs(group.size(), elements, dtype))));
}

// Member i sends i + 2 j times `scale` elements to member j.
inline void check_all_to_all(Memory& memory, std::int64_t scale, at::ScalarType dtype) {
  const Group& group = memory.group();
  const auto elements = [&](int from, int to) { return (from + 2 * to) * scale; };
  const auto sent = [&](int from, int to) {
    return input_of(from * 10 + to, elements(from, to), dtype);
  };
  std::vector<std::int64_t> output_counts, input_counts;
  std::vector<at::Tensor> inputs, expected;
  for (int peer = 0; peer < group.size(); ++peer) {
    input_counts.push_back(elements(group.rank(), peer));
    output_counts.push_back(elements(peer, group.rank()));
    inputs.push_back(sent(group.rank(), peer));
    expected.push_back(sent(peer, group.rank()));
  }
  memory.begin();
  const at::Tensor input = memory.of(at::cat(inputs));
  const at::Tensor output = memory.of(at::zeros({sum(output_counts)}, dtype));
  group.all_to_all(output, output_counts, input, input_counts, Rank::call("all_to_all")).wait();
  EXPECT_TRUE(identical(output, at::cat(expected))) << scale << " of " << dtype;
}

inline void check_rooted(Memory& memory, std::int64_t elements, at::ScalarType dtype, int root) {
  const Group& group = memory.group();
  const bool here = group.rank() == root;
  const at::Tensor own = input_of(group.rank(), elements, dtype);
  memory.begin();
  const at::Tensor tensor = memory.of(own);
  group.broadcast(tensor, root, Rank::call("broadcast")).wait();
  EXPECT_TRUE(identical(tensor, input_of(root, elements, dtype))) << elements << " of " << dtype;

  const at::Tensor stacked = at::stack(all_inputs(group.size(), elements, dtype));
  memory.begin();
  const at::Tensor given = memory.of(own);
  const at::Tensor gathered = here ? memory.of(at::zeros_like(stacked)) : at::Tensor();
  group.gather(gathered, given, root, Rank::call("gather")).wait();
  if (here) {
    EXPECT_TRUE(identical(gathered, stacked)) << elements << " of " << dtype;
  }

  memory.begin();
  const at::Tensor received = memory.of(at::zeros({elements}, dtype));
  group.scatter(received, here ? memory.of(stacked) : at::Tensor(), root, Rank::call("scatter"))
      .wait();
  EXPECT_TRUE(identical(received, own)) << elements << " of " << dtype;
}

// Around a ring, two messages to the next one, which must arrive in order.
inline void check_ring(Memory& memory, std::int64_t elements, at::ScalarType dtype = at::kFloat) {
  using enum Transfer::Direction;
  const Group& group = memory.group();
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  memory.begin();
  const at::Tensor first = memory.of(at::zeros({elements}, dtype));
  const at::Tensor second = memory.of(at::zeros({elements + 1}, dtype));
  const Transfer transfers[] = {
      {kSend, next, memory.of(input_of(group.rank(), elements, dtype))},
      {kReceive, previous, first},
      {kSend, next, memory.of(input_of(group.rank() + 50, elements + 1, dtype))},
      {kReceive, previous, second}};
  group.exchange(transfers, Rank::call("ring")).wait();
  EXPECT_TRUE(identical(first, input_of(previous, elements, dtype))) << elements << " of " << dtype;
  EXPECT_TRUE(identical(second, input_of(previous + 50, elements + 1, dtype)))
      << elements << " of " << dtype;
}

// Tests with an engine as their parameter.
class OnEngine : public testing::TestWithParam<TestedEngine> {
 protected:
  // On as many ranks as are worth it with the engine.
  static void expect(const std::string& function, std::initializer_list<int> sizes) {
    const std::vector<int>& chosen = GetParam().sizes;
    bool any = false;
    for (const int size : sizes) {
      if (!chosen.empty() && std::ranges::find(chosen, size) == chosen.end()) continue;
      expect_ranks(function, size, GetParam().options);
      any = true;
    }
    if (!any) expect_ranks(function, chosen.front(), GetParam().options);
  }
};

}  // namespace troika::test
