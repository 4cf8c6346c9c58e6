#include <gtest/gtest.h>
#include <troika/data/sampler.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace troika {
namespace {

std::vector<std::int64_t> order_of(const Permutation& permutation, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < permutation.size(); ++i) order.push_back(permutation.at(epoch, i));
  return order;
}

bool holds_each_once(std::vector<std::int64_t> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

TEST(Permutation, IsABijectionForEverySize) {
  for (std::int64_t size = 1; size <= 300; ++size) {
    for (const std::int64_t epoch : {0, 1, 17}) {
      EXPECT_TRUE(holds_each_once(order_of(Permutation(99, size), epoch))) << size;
    }
  }
  for (const std::int64_t size : {4095, 4096, 4097, 65537, 100003}) {
    EXPECT_TRUE(holds_each_once(order_of(Permutation(5, size), 3))) << size;
  }
}

TEST(Permutation, ReachesAllOfAHugeRange) {
  const std::int64_t size = (std::int64_t{1} << 40) + 12345;
  const Permutation permutation(1, size);
  std::set<std::int64_t> seen;
  double mean = 0;
  for (std::int64_t i = 0; i < 4000; ++i) {
    const std::int64_t value = permutation.at(0, size - 1 - i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, size);
    seen.insert(value);
    mean += static_cast<double>(value) / static_cast<double>(size) / 4000;
  }
  EXPECT_EQ(seen.size(), 4000U);
  EXPECT_NEAR(mean, 0.5, 0.025);  // five standard deviations
}

TEST(Permutation, IsAnotherOneInEachEpochAndForEachKey) {
  const Permutation permutation(1, 1000), other(2, 1000);
  EXPECT_NE(order_of(permutation, 0), order_of(permutation, 1));
  EXPECT_NE(order_of(permutation, 0), order_of(other, 0));
  EXPECT_EQ(order_of(permutation, 4), order_of(Permutation(1, 1000), 4));
}

// Every value is equally likely at every place, even for tiny sizes.
TEST(Permutation, IsUniform) {
  constexpr std::int64_t kEpochs = 8000;
  for (const std::int64_t size : {3, 8, 10}) {
    const Permutation permutation(7, size);
    for (std::int64_t position = 0; position < size; ++position) {
      std::map<std::int64_t, int> counts;
      for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch)
        ++counts[permutation.at(epoch, position)];
      const double expected = static_cast<double>(kEpochs) / static_cast<double>(size);
      for (const auto& [value, count] : counts) {
        EXPECT_NEAR(count, expected, 5 * std::sqrt(expected)) << value << " of " << size;
      }
    }
  }
}

// Samples must not move from one release or machine to another: a run that resumes would see some
// twice.
// Of every length, from places that are no multiple of what is computed at once.
TEST(Permutation, GivesTheSameItemsInARow) {
  for (const std::int64_t size : {1, 5, 17, 64, 1000, 1025}) {
    const Permutation order(11, size);
    for (const std::int64_t first : {std::int64_t{0}, size / 3, size - 1}) {
      for (const std::int64_t epoch : {0, 3}) {
        std::vector<std::int64_t> items(static_cast<std::size_t>(size - first)), expected;
        order.fill(epoch, first, items);
        for (std::int64_t i = first; i < size; ++i) expected.push_back(order.at(epoch, i));
        EXPECT_EQ(items, expected) << size << " " << first;
      }
    }
    std::vector<std::int64_t> beyond(static_cast<std::size_t>(size + 1));
    EXPECT_THROW(order.fill(0, 0, beyond), InternalError);
  }
}

TEST(Permutation, IsFixed) {
  const Permutation permutation(1337, 1000);
  std::vector<std::int64_t> first;
  for (std::int64_t i = 0; i < 8; ++i) first.push_back(permutation.at(0, i));
  EXPECT_EQ(first, (std::vector<std::int64_t>{123, 348, 806, 481, 171, 934, 800, 93}));
}

TEST(Mixture, FollowsTheWeightsAtEveryLength) {
  const std::vector<std::vector<double>> cases = {
      {1, 1}, {0.7, 0.3}, {5, 3, 2}, {1, 1000}, {0.2, 0.2, 0.2, 0.2, 0.2}, {3, 1e-9}};
  for (const auto& weights : cases) {
    const Mixture mixture(weights);
    std::vector<std::int64_t> count(weights.size());
    for (std::int64_t n = 0; n < 2 * Mixture::kBlock + 1000; ++n) {
      const Mixture::Turn turn = mixture.at(n);
      const auto source = static_cast<std::size_t>(turn.source);
      ASSERT_EQ(turn.position, count[source]) << n;  // random access agrees with counting
      ++count[source];
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const double share = static_cast<double>(mixture.turns(static_cast<std::int64_t>(k))) /
                             static_cast<double>(Mixture::kBlock);
        ASSERT_NEAR(static_cast<double>(count[k]), share * static_cast<double>(n + 1), 2) << n;
      }
    }
  }
}

TEST(Mixture, RoundsWeightsToABlock) {
  const auto turns = [](const std::vector<double>& weights) {
    const Mixture mixture(weights);
    std::vector<std::int64_t> turns;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      turns.push_back(mixture.turns(static_cast<std::int64_t>(k)));
    }
    return turns;
  };
  EXPECT_EQ(turns({2}), (std::vector<std::int64_t>{65536}));
  EXPECT_EQ(turns({3, 1}), (std::vector<std::int64_t>{49152, 16384}));
  EXPECT_EQ(turns({1, 1, 1}), (std::vector<std::int64_t>{21846, 21845, 21845}));
  EXPECT_EQ(turns({1, 1e-12, 1e-12}), (std::vector<std::int64_t>{65534, 1, 1}));
}

TEST(Sampler, GivesEachSampleOncePerPass) {
  const Sampler sampler(1, std::vector<std::int64_t>{101}, std::vector<double>{1});
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::int64_t> seen;
    for (std::int64_t i = 0; i < 101; ++i) {
      const SampleRef sample = sampler.at(epoch * 101 + i);
      EXPECT_EQ(sample.epoch, epoch);
      EXPECT_EQ(sample.ordinal, epoch * 101 + i);
      seen.push_back(sample.index);
    }
    EXPECT_TRUE(holds_each_once(seen));
  }
}

TEST(Sampler, GivesEachSampleOfEachSourceOncePerPass) {
  const std::vector<std::int64_t> sizes = {50, 7, 301};
  const Sampler sampler(3, sizes, std::vector<double>{0.5, 0.2, 0.3});
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> passes;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const SampleRef sample = sampler.at(i);
    passes[{sample.source, sample.epoch}].push_back(sample.index);
  }
  for (const auto& [place, seen] : passes) {
    const auto size = static_cast<std::size_t>(sizes[static_cast<std::size_t>(place.first)]);
    const bool last = !passes.contains({place.first, place.second + 1});
    EXPECT_TRUE(last || seen.size() == size);
    EXPECT_TRUE(last || holds_each_once(seen));
    EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), seen.size());
  }
  EXPECT_EQ((passes[{1, 0}].size()), 7U);
}

// The property that resuming and re-sizing lean on: batches of any sizes, cut among any numbers of
// ranks, walk through the same samples.
TEST(Sampler, IsTheSameForEveryLayoutAndBatchSize) {
  const Sampler sampler(11, std::vector<std::int64_t>{97}, std::vector<double>{1});
  std::vector<std::int64_t> seen;
  std::int64_t consumed = 0;
  const std::vector<std::pair<std::int64_t, std::int64_t>> phases = {
      {8, 2}, {7, 3}, {13, 4}, {1, 1}};
  for (const auto& [batch, ranks] : phases) {
    for (int step = 0; step < 3; ++step) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        for (const IndexRange part : microbatches_of(even_split(batch, rank, ranks), 2)) {
          for (std::int64_t i = 0; i < part.count; ++i) {
            seen.push_back(sampler.at(consumed + part.first + i).index);
          }
        }
      }
      consumed += batch;
    }
  }
  ASSERT_EQ(seen.size(), 87U);
  for (; consumed < 97; ++consumed) seen.push_back(sampler.at(consumed).index);
  EXPECT_TRUE(holds_each_once(seen));
}

TEST(IndexRange, CoversTheBatchInBalance) {
  for (std::int64_t batch = 1; batch <= 20; ++batch) {
    for (std::int64_t ranks = 1; ranks <= 6; ++ranks) {
      std::int64_t next = 0, least = batch, most = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const IndexRange range = even_split(batch, rank, ranks);
        EXPECT_EQ(range.first, next);
        next += range.count;
        least = std::min(least, range.count);
        most = std::max(most, range.count);
      }
      EXPECT_EQ(next, batch);
      EXPECT_LE(most - least, 1);
    }
  }
}

TEST(IndexRange, IsCutIntoMicrobatches) {
  EXPECT_EQ(microbatches_of({10, 7}, 3), (std::vector<IndexRange>{{10, 3}, {13, 3}, {16, 1}}));
  EXPECT_EQ(microbatches_of({0, 4}, 8), (std::vector<IndexRange>{{0, 4}}));
  EXPECT_TRUE(microbatches_of({5, 0}, 8).empty());
}

}  // namespace
}  // namespace troika
