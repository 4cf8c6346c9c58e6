#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace troika {
namespace {

using Options = DistributedSamplerOptions;
using Indices = std::vector<std::size_t>;

Indices pass(DistributedSampler& sampler, std::size_t batch = 4) {
  Indices indices;
  sampler.reset();
  while (const auto next = sampler.next(batch)) {
    EXPECT_LE(next->size(), batch);
    indices.insert(indices.end(), next->begin(), next->end());
  }
  return indices;
}

// What all ranks get in an epoch, sorted; and how much each.
struct Dealt {
  Indices all;
  std::vector<std::size_t> counts;
};

Dealt deal(std::size_t size, int ranks, Options options, std::uint64_t epoch = 0) {
  Dealt dealt;
  for (int rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler(size, rank, ranks, options);
    sampler.set_epoch(epoch);
    const Indices own = pass(sampler);
    EXPECT_EQ(own.size(), sampler.samples());
    dealt.counts.push_back(own.size());
    dealt.all.insert(dealt.all.end(), own.begin(), own.end());
  }
  std::ranges::sort(dealt.all);
  return dealt;
}

Indices zero_to(std::size_t size) {
  Indices indices;
  for (std::size_t i = 0; i < size; ++i) indices.push_back(i);
  return indices;
}

TEST(DistributedSampler, EverySampleOnceWhereSizesMayDiffer) {
  const Dealt dealt = deal(11, 3, {.seed = 5, .tail = Options::Tail::kUneven});
  EXPECT_EQ(dealt.all, zero_to(11));
  EXPECT_THAT(dealt.counts, testing::ElementsAre(4, 4, 3));
}

TEST(DistributedSampler, PadsOrDropsTheTail) {
  const Dealt padded = deal(11, 3, {.seed = 5});
  EXPECT_THAT(padded.counts, testing::ElementsAre(4, 4, 4));
  Indices distinct = padded.all;
  const auto rest = std::ranges::unique(distinct);
  EXPECT_EQ(rest.size(), 1);
  const Dealt dropped = deal(11, 3, {.seed = 5, .tail = Options::Tail::kDrop});
  EXPECT_THAT(dropped.counts, testing::ElementsAre(3, 3, 3));
  EXPECT_EQ(std::ranges::adjacent_find(dropped.all), dropped.all.end());
}

TEST(DistributedSampler, MoreRanksThanSamples) {
  EXPECT_THAT(deal(2, 5, {}).counts, testing::ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(deal(2, 5, {.tail = Options::Tail::kUneven}).counts,
              testing::ElementsAre(1, 1, 0, 0, 0));
}

TEST(DistributedSampler, EachPassIsAnotherEpoch) {
  DistributedSampler sampler(50, 0, 2, {.seed = 1}), other(50, 0, 2, {.seed = 1});
  const Indices first = pass(sampler), second = pass(sampler);
  EXPECT_NE(first, second);
  EXPECT_EQ(sampler.epoch(), 1);
  other.set_epoch(1);
  EXPECT_EQ(pass(other, 7), second);  // whatever the batch
  DistributedSampler seeded(50, 0, 2, {.seed = 2});
  EXPECT_NE(pass(seeded), first);
}

TEST(DistributedSampler, InOrder) {
  DistributedSampler sampler(7, 1, 2, {.order = Options::Order::kAscending});
  EXPECT_THAT(pass(sampler), testing::ElementsAre(1, 3, 5, 0));
}

TEST(DistributedSampler, GoesOnWhereItWasSaved) {
  DistributedSampler sampler(20, 0, 2, {.seed = 1});
  (void)pass(sampler);
  sampler.reset();
  const auto taken = sampler.next(4);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream file;
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler restored(20, 0, 2, {.seed = 1});
  restored.load(in);
  Indices rest = pass(restored), all = *taken;
  EXPECT_EQ(rest.size(), 6);
  all.insert(all.end(), rest.begin(), rest.end());
  DistributedSampler whole(20, 0, 2, {.seed = 1});
  whole.set_epoch(1);
  EXPECT_EQ(all, pass(whole));
  EXPECT_EQ(pass(restored).size(), 10);
}

// Ranks of another number deal out what is left of the epoch.
TEST(DistributedSampler, GoesOnBehindAPositionOfOtherRanks) {
  for (const auto tail : {Options::Tail::kPad, Options::Tail::kUneven}) {
    const Options options{.seed = 4, .tail = tail};
    Indices all;
    DistributedSampler::Position position;
    for (int rank = 0; rank < 3; ++rank) {
      DistributedSampler sampler(20, rank, 3, options);
      sampler.set_epoch(6);
      const auto taken = sampler.next(2);
      all.insert(all.end(), taken->begin(), taken->end());
      position = sampler.position();
    }
    EXPECT_EQ(position.epoch, 6);
    EXPECT_EQ(position.taken, 6);
    for (int rank = 0; rank < 2; ++rank) {
      DistributedSampler sampler(20, rank, 2, options);
      sampler.go_to(position);
      sampler.reset();  // as a data loader does when it is made
      const Indices rest = pass(sampler);
      EXPECT_EQ(rest.size(), 7);
      all.insert(all.end(), rest.begin(), rest.end());
      EXPECT_EQ(pass(sampler).size(), 10);
      EXPECT_EQ(sampler.epoch(), 7);
    }
    std::ranges::sort(all);
    EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
    EXPECT_EQ(all.size(), 20);
  }
}

TEST(DistributedSampler, FeedsADataLoader) {
  const torch::Tensor values = torch::arange(10, torch::kLong);
  DistributedSampler sampler(10, 1, 2, {.tail = Options::Tail::kUneven});
  auto loader = torch::data::make_data_loader(
      torch::data::datasets::TensorDataset(values).map(
          torch::data::transforms::Stack<torch::data::TensorExample>()),
      sampler, torch::data::DataLoaderOptions(3));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    Indices seen;
    for (const auto& batch : *loader) {
      for (std::int64_t i = 0; i < batch.data.numel(); ++i) {
        seen.push_back(static_cast<std::size_t>(batch.data[i].item<std::int64_t>()));
      }
    }
    DistributedSampler wanted(10, 1, 2, {.tail = Options::Tail::kUneven});
    wanted.set_epoch(epoch);
    EXPECT_EQ(seen, pass(wanted));
    EXPECT_EQ(sampler.epoch(), epoch);  // the loader's is a copy that shares its place
  }
}

TEST(DistributedSampler, RefusesWhatMakesNoSense) {
  EXPECT_THROW(DistributedSampler(0, 0, 1), UsageError);
  EXPECT_THROW(DistributedSampler(1, 1, 1), UsageError);
  EXPECT_THROW(DistributedSampler(1, -1, 1), UsageError);
}

}  // namespace
}  // namespace troika
