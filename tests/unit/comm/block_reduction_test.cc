#include <gtest/gtest.h>
#include <troika/comm/p2p/block_reduction.h>

namespace troika::detail {
namespace {

// docs/engines.md: two of them from each peer, 32 MiB in all, and no less than 256 KiB each.
TEST(BlockReduction, HasBlocksForAllPeersIn32MiB) {
  constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;
  for (const int size : {2, 3, 5}) EXPECT_EQ(BlockReduction::default_block_bytes(size), 4 * kMiB);
  for (int size = 6; size <= 65; ++size) {
    const std::int64_t all = 2 * (size - 1) * BlockReduction::default_block_bytes(size);
    EXPECT_LE(all, 32 * kMiB) << size;
    EXPECT_GT(all, 31 * kMiB) << size;
  }
  for (const int size : {65, 66, 1000}) {
    EXPECT_EQ(BlockReduction::default_block_bytes(size), 256 * kKiB) << size;
  }
}

}  // namespace
}  // namespace troika::detail
