#include <gmock/gmock.h>
#include <sys/resource.h>
#include <troika/train/block_heap.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace troika {
namespace {

constexpr std::size_t kUnit = BlockHeap::kAlignment, kChunk = BlockHeap::kChunk;
constexpr std::size_t kSlack = 2 * kChunk;  // that a heap may have beyond the peak of its blocks

std::size_t kept_with(BlockHeap& heap, std::size_t bytes) {
  heap.release(heap.allocate(bytes));
  return heap.cached_bytes();
}

long page_faults() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

TEST(BlockHeap, HandsABlockOutAgain) {
  BlockHeap heap(64 * kChunk);
  void* const first = heap.allocate(3 * kChunk);
  ASSERT_NE(first, nullptr);
  std::memset(first, 1, 3 * kChunk);
  EXPECT_EQ(heap.release(first), 3 * kChunk);
  const long before = page_faults();
  void* const second = heap.allocate(3 * kChunk);
  EXPECT_EQ(second, first);
  std::memset(second, 2, 3 * kChunk);
  EXPECT_LT(page_faults() - before, 20);  // fresh memory has 1,536 small pages
}

TEST(BlockHeap, SizesNearUnitsAndChunks) {
  BlockHeap heap(256 * kChunk);
  std::vector<char*> blocks;
  for (const std::size_t size : {kUnit, kChunk, 4 * kChunk}) {
    for (const std::size_t bytes : {size - 1, size, size + 1}) {
      auto* const block = static_cast<char*>(heap.allocate(bytes));
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kUnit, 0u);
      EXPECT_EQ(heap.size_of(block), bytes);
      std::memset(block, static_cast<int>(blocks.size()), bytes);
      blocks.push_back(block);
    }
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t bytes = heap.size_of(blocks[i]);
    EXPECT_EQ(blocks[i][0], static_cast<char>(i));
    EXPECT_EQ(blocks[i][bytes - 1], static_cast<char>(i)) << "written over by a neighbour";
    EXPECT_EQ(heap.release(blocks[i]), bytes);
  }
}

TEST(BlockHeap, TakesTheBestFit) {
  BlockHeap heap(64 * kChunk);
  void* const large = heap.allocate(8 * kUnit);
  void* const between = heap.allocate(kUnit);
  void* const small = heap.allocate(2 * kUnit);
  void* const after = heap.allocate(kUnit);
  heap.release(large);
  heap.release(small);
  EXPECT_EQ(heap.allocate(2 * kUnit), small);
  EXPECT_EQ(heap.allocate(3 * kUnit), large);
  EXPECT_EQ(heap.allocate(5 * kUnit), static_cast<char*>(large) + 3 * kUnit);
  heap.release(between);
  heap.release(after);
}

TEST(BlockHeap, JoinsNeighboursThatAreFree) {
  // In which of three neighbours is released last, all must be found as one.
  const std::array<std::array<int, 3>, 4> orders = {{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}};
  for (const auto& order : orders) {
    BlockHeap heap(64 * kChunk);
    std::array<void*, 3> blocks{};
    for (void*& block : blocks) block = heap.allocate(5 * kUnit);
    for (const int i : order) heap.release(blocks[static_cast<std::size_t>(i)]);
    EXPECT_EQ(heap.allocate(15 * kUnit), blocks[0]);
  }
}

TEST(BlockHeap, KnowsBlocksThatAreNotItsOwn) {
  BlockHeap heap(4 * kChunk), other(4 * kChunk);
  std::array<char, 8> outside{};
  void* const block = heap.allocate(kUnit);
  EXPECT_TRUE(heap.owns(block));
  EXPECT_FALSE(other.owns(block));
  EXPECT_FALSE(heap.owns(outside.data()));
  EXPECT_FALSE(heap.owns(nullptr));
}

TEST(BlockHeap, HasNoMoreThanItsAddresses) {
  BlockHeap heap(4 * kChunk);
  void* const most = heap.allocate(4 * kChunk);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(heap.allocate(1), nullptr);
  heap.release(most);
  EXPECT_EQ(heap.allocate(4 * kChunk + 1), nullptr);
  EXPECT_EQ(heap.allocate(SIZE_MAX), nullptr);
  EXPECT_NE(heap.allocate(4 * kChunk), nullptr);
}

TEST(BlockHeap, WithoutAddressesThereAreNoBlocks) {
  BlockHeap heap(std::size_t{1} << 60);
  EXPECT_EQ(heap.allocate(1), nullptr);
  EXPECT_FALSE(heap.owns(&heap));
  EXPECT_FALSE(heap.trim());
}

TEST(BlockHeap, KeepsAtMostThePeakOfTheLastStep) {
  BlockHeap heap(256 * kChunk);
  EXPECT_EQ(kept_with(heap, 100 * kChunk), 100 * kChunk);  // as it was made ready
  heap.begin_step();
  EXPECT_LE(heap.cached_bytes(), kSlack);
  EXPECT_EQ(kept_with(heap, 40 * kChunk), 40 * kChunk);
  heap.end_step();
  EXPECT_EQ(heap.cached_bytes(), 40 * kChunk);
  kept_with(heap, 80 * kChunk);  // an evaluation
  EXPECT_GE(heap.cached_bytes(), 80 * kChunk);
  heap.begin_step();
  EXPECT_EQ(heap.cached_bytes(), (40 + 2 + 2) * kChunk);  // a twentieth more, and the slack
  kept_with(heap, 10 * kChunk);
  heap.end_step();
  EXPECT_LE(heap.cached_bytes(), 10 * kChunk + kChunk / 2 + kSlack);
}

TEST(BlockHeap, TakesNoMoreThanThePeakWhereBlocksDoNotFit) {
  BlockHeap heap(1024 * kChunk);
  heap.begin_step();
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(heap.allocate(kChunk));
  // Every other chunk is free, so that no block of two fits in between.
  for (std::size_t i = 0; i < blocks.size(); i += 2) heap.release(blocks[i]);
  std::vector<void*> wide;
  for (int i = 0; i < 20; ++i) wide.push_back(heap.allocate(2 * kChunk));
  const std::size_t live = (50 + 40) * kChunk, peak = 100 * kChunk;
  EXPECT_LE(live + heap.cached_bytes(), peak + peak / 20 + kSlack);
}

TEST(BlockHeap, TrimsToNothing) {
  BlockHeap heap(64 * kChunk);
  auto* const block = static_cast<char*>(heap.allocate(8 * kChunk));
  std::memset(block, 7, 8 * kChunk);
  void* const stays = heap.allocate(kChunk);
  heap.release(block);
  EXPECT_TRUE(heap.trim());
  EXPECT_EQ(heap.cached_bytes(), 0u);
  EXPECT_FALSE(heap.trim());
  auto* const again = static_cast<char*>(heap.allocate(8 * kChunk));
  EXPECT_EQ(again, block);
  EXPECT_EQ(again[0] + again[8 * kChunk - 1], 0) << "the kernel has not taken these pages back";
  heap.release(again);
  heap.release(stays);
}

TEST(BlockHeap, KeepsNothingWhereMemoryIsScarce) {
  bool is_scarce = false;
  BlockHeap heap(512 * kChunk, [&] { return is_scarce; });
  EXPECT_EQ(kept_with(heap, 64 * kChunk), 64 * kChunk);
  void* const first = heap.allocate(64 * kChunk);
  is_scarce = true;
  heap.release(heap.allocate(40 * kChunk));
  heap.release(first);
  void* const grown = heap.allocate(200 * kChunk);
  EXPECT_EQ(heap.cached_bytes(), 0u);
  heap.release(grown);
}

TEST(BlockHeap, ThreadsReleaseWhatOthersHaveAllocated) {
  BlockHeap heap(1024 * kChunk);
  constexpr int kRounds = 300;
  std::vector<std::vector<std::pair<char*, std::size_t>>> blocks(4);
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      threads.emplace_back([&, i] {
        // Releases those of its neighbour in the last pass, which no one else does.
        auto mine = std::move(blocks[i]);
        std::mt19937 random(static_cast<unsigned>(i + 17));
        for (int round = 0; round < kRounds; ++round) {
          const std::size_t bytes = 1 + random() % (3 * kUnit);
          auto* const block = static_cast<char*>(heap.allocate(bytes));
          std::memset(block, static_cast<int>(i), bytes);
          mine.emplace_back(block, bytes);
          if (mine.size() < 50) continue;
          EXPECT_EQ(heap.release(mine.front().first), mine.front().second);
          mine.erase(mine.begin());
        }
        blocks[i] = std::move(mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::ranges::rotate(blocks, blocks.begin() + 1);
  }
  for (auto& mine : blocks) {
    for (const auto& [block, bytes] : mine) {
      EXPECT_EQ(block[0], block[bytes - 1]);
      heap.release(block);
    }
  }
  heap.trim();
  EXPECT_EQ(heap.cached_bytes(), 0u);
}

// Against a plain list of what is alive: blocks do not overlap, and all comes back as one.
TEST(BlockHeap, RandomSequencesKeepBlocksApart) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    BlockHeap heap(64 * kChunk);
    std::mt19937 random(seed);
    std::map<char*, std::size_t> alive;
    for (int i = 0; i < 3000; ++i) {
      if (!alive.empty() && random() % 100 < 48) {
        const auto one = std::next(alive.begin(), static_cast<long>(random() % alive.size()));
        EXPECT_EQ(heap.release(one->first), one->second);
        alive.erase(one);
        continue;
      }
      const std::size_t bytes = 1 + random() % (40 * kUnit);
      auto* const block = static_cast<char*>(heap.allocate(bytes));
      if (block == nullptr) continue;
      const auto [at, is_new] = alive.emplace(block, bytes);
      ASSERT_TRUE(is_new);
      if (at != alive.begin()) {
        ASSERT_LE(std::prev(at)->first + std::prev(at)->second, block);
      }
      if (std::next(at) != alive.end()) {
        ASSERT_LE(block + bytes, std::next(at)->first);
      }
      if (i % 500 == 0) heap.trim();
    }
    for (const auto& [block, bytes] : alive) heap.release(block);
    EXPECT_NE(heap.allocate(64 * kChunk), nullptr) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troika
