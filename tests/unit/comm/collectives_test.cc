// The algorithms, between threads: every size around the boundaries of tiny blocks, the exact order
// of additions, and the bytes on the wire that the documentation promises.
#include <troika/comm/p2p/collectives.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "unit/comm/memory_transport.h"

namespace troika {
namespace {

using test::MemoryTransport;
using test::MemoryTransports;

constexpr Collectives::Tuning kTiny{.at_once_bytes = 64, .block_bytes = 16};
const OperationScope kScope{10, Deadline::in(Seconds(100))};

// Runs `body` as every member of a group; returns the bytes that each has sent.
std::vector<std::int64_t> run(int size, Collectives::Tuning tuning,
                              const std::function<void(Collectives&, int rank)>& body) {
  MemoryTransports transports;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryTransport transport(transports, rank, size);
      Collectives collectives(transport, tuning);
      body(collectives, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::int64_t> sent;
  for (int rank = 0; rank < size; ++rank) sent.push_back(transports.sent_bytes(rank));
  return sent;
}

// Values of many magnitudes: another order of additions gives other bits.
at::Tensor values(int rank, std::int64_t elements) {
  const at::Tensor i = at::arange(elements, at::kDouble);
  return (at::sin(i * (rank + 1.5)) * at::exp2(at::remainder(i + 3 * rank, 40) - 20))
      .to(at::kFloat);
}

at::Tensor reduced(int size, std::int64_t elements) {
  at::Tensor sum = values(0, elements);
  for (int rank = 1; rank < size; ++rank) sum = sum + values(rank, elements);
  return sum;
}

TEST(Collectives, AllReduceFoldsInOrderAtEverySize) {
  for (const int size : {2, 3, 5}) {
    for (std::int64_t elements = 0; elements < 70; ++elements) {
      const at::Tensor expected = reduced(size, elements);
      run(size, kTiny, [&](Collectives& collectives, int rank) {
        const at::Tensor tensor = values(rank, elements);
        collectives.all_reduce(tensor, ReduceOp::kSum, kScope);
        EXPECT_TRUE(at::equal(tensor, expected)) << size << " members, " << elements;
      });
    }
  }
}

TEST(Collectives, ReduceScatterTakesUnevenParts) {
  const std::vector<std::vector<std::int64_t>> cases = {
      {5, 5}, {0, 9}, {9, 0}, {0, 0}, {1, 0, 30}, {13, 4, 5}, {4, 8, 0, 1, 17}};
  for (const auto& counts : cases) {
    const int size = static_cast<int>(counts.size());
    const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const at::Tensor expected = reduced(size, elements);
    run(size, kTiny, [&](Collectives& collectives, int rank) {
      const std::int64_t start =
          std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
      const std::int64_t count = counts[static_cast<std::size_t>(rank)];
      const at::Tensor input = values(rank, elements);
      const at::Tensor output = at::zeros({count});
      collectives.reduce_scatter(output, input, counts, ReduceOp::kSum, kScope);
      EXPECT_TRUE(at::equal(output, expected.narrow(0, start, count)));
      EXPECT_TRUE(at::equal(input, values(rank, elements)));
    });
  }
}

TEST(Collectives, BroadcastReachesEverybodyFromEveryRoot) {
  constexpr std::int64_t kElements = 300'000;  // more than one segment
  for (const int size : {2, 3, 4, 5, 7}) {
    for (int root = 0; root < size; ++root) {
      run(size, kTiny, [&](Collectives& collectives, int rank) {
        const at::Tensor tensor = at::full({kElements}, rank, at::kInt);
        collectives.broadcast(tensor, root, kScope);
        EXPECT_TRUE(at::equal(tensor, at::full({kElements}, root, at::kInt)));
      });
    }
  }
}

TEST(Collectives, SendTheBytesThatAreDocumented) {
  constexpr std::int64_t kElements = 3 * 64;
  constexpr std::int64_t kBytes = kElements * 4;
  const std::int64_t counts[] = {64, 64, 64};
  const auto all_reduce = [](Collectives& collectives, int rank) {
    collectives.all_reduce(values(rank, kElements), ReduceOp::kSum, kScope);
  };
  EXPECT_EQ(run(3, kTiny, all_reduce), std::vector<std::int64_t>(3, 2 * 2 * kBytes / 3));
  EXPECT_EQ(run(3, {.at_once_bytes = 1 << 20, .block_bytes = 16}, all_reduce),
            std::vector<std::int64_t>(3, 2 * kBytes));
  EXPECT_EQ(run(3, kTiny,
                [&](Collectives& collectives, int rank) {
                  collectives.reduce_scatter(at::zeros({64}), values(rank, kElements), counts,
                                             ReduceOp::kSum, kScope);
                }),
            std::vector<std::int64_t>(3, 2 * kBytes / 3));
  EXPECT_EQ(run(3, kTiny,
                [&](Collectives& collectives, int rank) {
                  collectives.all_gather(at::zeros({kElements}), values(rank, 64), counts, kScope);
                }),
            std::vector<std::int64_t>(3, 2 * kBytes / 3));
  EXPECT_EQ(run(4, kTiny,
                [&](Collectives& collectives, int) {
                  collectives.broadcast(at::zeros({kElements}), 0, kScope);
                }),
            (std::vector<std::int64_t>{2 * kBytes, 0, kBytes, 0}));
  EXPECT_EQ(run(5, kTiny, [](Collectives& collectives, int) { collectives.barrier(kScope); }),
            std::vector<std::int64_t>(5, 3));
}

TEST(Collectives, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (const int size : {2, 3, 6}) {
    std::atomic<int> entered = 0;
    run(size, kTiny, [&](Collectives& collectives, int) {
      ++entered;
      collectives.barrier(kScope);
      EXPECT_EQ(entered, size);
    });
  }
}

}  // namespace
}  // namespace troika
