#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/checkpoint/overlap.h>

#include <vector>

namespace troika {
namespace {

// Every cut of a [4, 6] into a slice and a range of it.
std::vector<ShardDescriptor> many_parts() {
  std::vector<ShardDescriptor> parts;
  for (const Slice slice : {Slice{0, 0, 4}, Slice{0, 1, 3}, Slice{1, 0, 2}, Slice{1, 2, 6},
                            Slice{1, 3, 4}, Slice{0, 3, 4}}) {
    const std::int64_t all = (slice.end - slice.begin) * (slice.dim == 0 ? 6 : 4);
    for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, all},
                                       {0, all / 2},
                                       {all / 3, all - all / 3},
                                       {all / 2, 1}}) {
      parts.push_back({{4, 6}, slice, begin, count, count});
    }
  }
  return parts;
}

TEST(Overlap, IsWhatGoingThroughTheWholeGives) {
  const at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  for (const ShardDescriptor& from : many_parts()) {
    for (const ShardDescriptor& to : many_parts()) {
      const at::Tensor source = at::empty({from.count}), target = at::full({to.count}, -1.0F);
      copy_from_whole(from, whole, source);
      const at::Tensor there = at::full({4, 6}, -1.0F), expected = at::empty({to.count});
      copy_into_whole(from, source, there);
      copy_from_whole(to, there, expected);
      const std::int64_t copied =
          copy_overlap(from, static_cast<const std::byte*>(source.const_data_ptr()), to,
                       static_cast<std::byte*>(target.mutable_data_ptr()), sizeof(float));
      EXPECT_TRUE(target.equal(expected));
      EXPECT_EQ(copied, (expected >= 0).sum().item<std::int64_t>());
    }
  }
}

TEST(Overlap, IsThatOfScalarsAndOfNothing) {
  const ShardDescriptor scalar = ShardDescriptor::whole({}, true);
  const ShardDescriptor empty = ShardDescriptor::whole({0, 3}, true);
  const float source = 7;
  float target = 0;
  const auto copied = [&](const ShardDescriptor& shard) {
    return copy_overlap(shard, reinterpret_cast<const std::byte*>(&source), shard,
                        reinterpret_cast<std::byte*>(&target), sizeof(float));
  };
  EXPECT_EQ(copied(empty), 0);
  EXPECT_EQ(target, 0);
  EXPECT_EQ(copied(scalar), 1);
  EXPECT_EQ(target, 7);
}

}  // namespace
}  // namespace troika
