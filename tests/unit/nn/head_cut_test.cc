#include <gtest/gtest.h>
#include <troika/nn/head_cut.h>

namespace troika {
namespace {

// Every query head has one rank, reads the head that it reads on one rank, and every key and value
// head is counted once.
void expect_whole(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(kv_heads) +
               " of keys and values, on " + std::to_string(ranks));
  std::int64_t next_query = 0, next_counted = 0, held = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadCut cut = cut_heads(heads, kv_heads, rank, ranks);
    EXPECT_EQ(cut.query.first, next_query);
    EXPECT_GE(cut.query.count, 1);
    next_query = cut.query.end();
    ASSERT_EQ(std::ssize(cut.reads), cut.query.count);
    for (std::int64_t i = 0; i < cut.query.count; ++i) {
      const std::int64_t read = cut.reads[static_cast<std::size_t>(i)];
      EXPECT_EQ(cut.key_value.first + read, (cut.query.first + i) * kv_heads / heads);
      EXPECT_LT(read, cut.key_value.count);
    }
    EXPECT_GE(cut.counted, 0);
    EXPECT_LE(cut.counted, cut.key_value.count);
    if (cut.counted > 0) {
      EXPECT_EQ(cut.key_value.first, next_counted);
      next_counted += cut.counted;
    }
    held += cut.key_value.count;
  }
  EXPECT_EQ(next_query, heads);
  EXPECT_EQ(next_counted, kv_heads);
  EXPECT_EQ(cut_heads(heads, kv_heads, 0, ranks).overlapping, held > kv_heads);
}

TEST(HeadCut, CutsAnyHeadsOverAsManyRanks) {
  for (std::int64_t heads = 1; heads <= 12; ++heads) {
    for (std::int64_t kv_heads = 1; kv_heads <= heads; ++kv_heads) {
      if (heads % kv_heads != 0) continue;
      for (int ranks = 1; ranks <= heads; ++ranks) expect_whole(heads, kv_heads, ranks);
    }
  }
}

TEST(HeadCut, NeighboursMayReadTheSameHead) {
  // 8 heads on 3 ranks, two of which read each of 4 heads of keys and values.
  const HeadCut first = cut_heads(8, 4, 0, 3), second = cut_heads(8, 4, 1, 3);
  EXPECT_EQ(first.query, (IndexRange{0, 3}));
  EXPECT_EQ(first.key_value, (IndexRange{0, 2}));
  EXPECT_EQ(first.reads, (std::vector<std::int64_t>{0, 0, 1}));
  EXPECT_EQ(first.counted, 1);  // the second one reads the other head, too, and counts it
  EXPECT_TRUE(first.overlapping);
  EXPECT_EQ(second.key_value, (IndexRange{1, 2}));
  EXPECT_EQ(second.reads, (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(second.counted, 2);
}

}  // namespace
}  // namespace troika
