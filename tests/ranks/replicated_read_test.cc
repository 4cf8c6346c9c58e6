// One rank of those that want the same part reads it, and sends it to the others.
#include <ATen/ATen.h>
#include <troika/checkpoint/replicated_read.h>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

// Rank by rank: two large tensors that all want, one that even ranks want, and halves.
StateDict wanted_by(const Rank& rank) {
  StateDict state;
  const std::int64_t size = ReplicatedRead::kChunkBytes / 4 + 5;  // more than a piece
  for (const char* name : {"a", "b"}) {
    state.add(name, ShardDescriptor::whole({size}, false), at::zeros({size}));
  }
  if (rank.index() % 2 == 0) {
    state.add("even", ShardDescriptor::whole({3}, false), at::zeros({3}, at::kDouble));
  }
  ShardDescriptor half = ShardDescriptor::whole({8}, false);
  half.begin = 4 * (rank.index() % 2);
  half.count = 4;
  state.add("halves", half, at::zeros({4}, at::kLong));
  state.add("own." + std::to_string(rank.index()), ShardDescriptor::whole({}, false),
            at::zeros({1}));
  return state;
}

double value_of(const StateTensor& part) {
  return static_cast<double>(part.name.front()) + static_cast<double>(part.shard.begin);
}

RANK_TEST(ReplicatedRead, ReadsEachPartOnceAndGivesItToAllThatWantIt, 1, 2, 3) {
  const Group world = rank.group("world");
  const StateDict state = wanted_by(rank);
  const ReplicatedRead read(world, state.tensors(), Seconds(30));
  std::int64_t elements = 0;
  read.read([&](const StateTensor& part) {
    part.tensor.fill_(value_of(part));
    elements += part.tensor.numel();
  });
  read.share();
  for (const StateTensor& part : state.tensors()) {
    EXPECT_TRUE(part.tensor.eq(value_of(part)).all().item<bool>()) << part.name;
  }
  // Each once, and none of the ranks both of the large ones.
  at::Tensor all = at::tensor({elements}, at::kLong);
  world.all_reduce(all, ReduceOp::kSum, Rank::call("elements")).wait();
  const std::int64_t large = ReplicatedRead::kChunkBytes / 4 + 5;
  const std::int64_t halves = rank.size() > 1 ? 8 : 4;
  EXPECT_EQ(all.item<std::int64_t>(), 2 * large + 3 + halves + rank.size());
  if (rank.size() > 1) {
    EXPECT_LT(read.bytes_read(), 4 * 2 * large);
  }
}

RANK_TEST(ReplicatedRead, LetsEachRankOfOneHostReadForItself, 1, 2, 3) {
  const StateDict state = wanted_by(rank);
  const ReplicatedRead read(rank.group("world"), state.tensors(), Seconds(30),
                            PartReaders::kAllOfOneHost);
  std::int64_t bytes = 0, parts = 0;
  read.read([&](const StateTensor& part) {
    bytes += static_cast<std::int64_t>(part.tensor.nbytes());
    ++parts;
  });
  EXPECT_EQ(parts, std::ssize(state.tensors()));
  EXPECT_EQ(read.bytes_read(), bytes);
  read.share();
}

}  // namespace
}  // namespace troika::test
