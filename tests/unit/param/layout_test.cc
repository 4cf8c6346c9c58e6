// How blocks, shards and pieces are cut, for many shapes drawn at random.
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/param/layout.h>

#include <algorithm>

namespace troika {
namespace {

constexpr NumericTypes kMixed{at::kBFloat16, at::kFloat};
constexpr NumericTypes kSingle{at::kFloat, at::kFloat};

std::vector<ParameterSpec> random_specs(std::uint64_t seed) {
  const RandomStream stream(stream_key(seed, "shapes"));
  std::vector<ParameterSpec> specs;
  std::uint64_t draw = 0;
  const std::uint64_t count = 1 + stream.below(draw++, 30);
  int unit = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    ParameterSpec spec;
    spec.name = std::to_string(i);
    unit += static_cast<int>(stream.below(draw++, 3));
    spec.unit = unit;
    // From nothing to a dozen chunks, often a whole number of them.
    const auto chunks = static_cast<std::int64_t>(stream.below(draw++, 13));
    const bool whole_chunks = stream.below(draw++, 3) == 0;
    const auto rest = whole_chunks ? 0 : static_cast<std::int64_t>(stream.below(draw++, 8000));
    spec.shape = {chunks * kChunkElements + rest};
    spec.precise = stream.below(draw++, 5) == 0;
    spec.whole_matrix = stream.below(draw++, 20) == 0;
    specs.push_back(spec);
  }
  return specs;
}

std::vector<const ParameterSpec*> pointers(const std::vector<ParameterSpec>& specs) {
  std::vector<const ParameterSpec*> result;
  for (const ParameterSpec& spec : specs) result.push_back(&spec);
  return result;
}

struct Cut {
  std::vector<ParameterSpec> specs;
  std::vector<Layout> layouts;  // by shard
};

Cut cut(std::uint64_t seed, int stage, int shards, NumericTypes types, BucketSizes buckets = {}) {
  Cut result{random_specs(seed), {}};
  for (int shard = 0; shard < shards; ++shard) {
    result.layouts.emplace_back(pointers(result.specs), types,
                                LayoutOptions{stage, shards, shard, buckets});
  }
  return result;
}

void expect_every_element_once(const Cut& cut) {
  for (std::size_t p = 0; p < cut.specs.size(); ++p) {
    const std::int64_t count = cut.specs[p].local_count();
    std::vector<PieceRange> pieces;
    for (const Layout& layout : cut.layouts) {
      for (const PieceRange& piece : layout.pieces()) {
        if (piece.parameter == p) pieces.push_back(piece);
      }
    }
    std::int64_t covered = 0;
    for (const PieceRange& piece : pieces) {  // shards are in the order of memory
      EXPECT_EQ(piece.begin, covered);
      EXPECT_EQ(piece.begin % kChunkElements, 0) << "a chunk is cut";
      covered += piece.count;
    }
    EXPECT_EQ(covered, count);
    EXPECT_FALSE(pieces.empty());
    if (cut.specs[p].whole_matrix) {
      EXPECT_EQ(pieces.size(), 1U);
    }
  }
}

void expect_borders(const Layout& layout, std::size_t shards) {
  std::int64_t end = 0, value_end = 0;
  for (const Block& block : layout.blocks()) {
    ASSERT_EQ(block.borders.size(), shards + 1);
    ASSERT_EQ(block.value_borders.size(), shards + 1);
    EXPECT_EQ(block.borders.front(), end);
    EXPECT_EQ(block.value_borders.front(), value_end);
    EXPECT_TRUE(std::ranges::is_sorted(block.borders));
    EXPECT_TRUE(std::ranges::is_sorted(block.value_borders));
    for (const std::int64_t border : block.value_borders) EXPECT_EQ(border % 64, 0);
    for (const std::int64_t border : block.borders) EXPECT_EQ(border % 32, 0);
    end = block.borders.back();
    value_end = block.value_borders.back();
  }
  EXPECT_EQ(end, layout.elements());
  EXPECT_EQ(value_end, layout.value_bytes());
}

TEST(Layout, PutsEveryElementIntoOnePieceWithBordersAtChunks) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const int shards = 1 + static_cast<int>(seed % 7);
    const int stage = 1 + static_cast<int>(seed % 3);
    const Cut result = cut(seed, stage, shards, seed % 2 == 0 ? kMixed : kSingle,
                           {.first_bytes = 40000, .bytes = 300000});
    expect_every_element_once(result);
    std::int64_t own = 0, own_values = 0;
    for (const Layout& layout : result.layouts) {
      expect_borders(layout, static_cast<std::size_t>(shards));
      EXPECT_TRUE(std::ranges::equal(layout.blocks().front().borders,
                                     result.layouts[0].blocks().front().borders));
      own += layout.own_elements();
      own_values += layout.own_value_bytes();
    }
    EXPECT_EQ(own, result.layouts[0].elements());
    EXPECT_EQ(own_values, result.layouts[0].value_bytes());
  }
}

TEST(Layout, BalancesShardsOverAllBlocksTogether) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Cut result{random_specs(seed), {}};
    for (ParameterSpec& spec : result.specs) spec.whole_matrix = false;
    for (const int stage : {1, 3}) {
      for (const int shards : {2, 3, 4}) {
        for (int shard = 0; shard < shards; ++shard) {
          const Layout layout(pointers(result.specs), kMixed,
                              LayoutOptions{stage, shards, shard, {}});
          const std::int64_t share = layout.elements() / shards;
          EXPECT_LE(std::abs(layout.own_elements() - share), 2 * kChunkElements)
              << seed << ", " << shards << " shards, stage " << stage;
        }
      }
    }
  }
}

TEST(Layout, GroupsUnitsIntoBlocksFromTheLast) {
  std::vector<ParameterSpec> specs(6);
  for (int i = 0; i < 6; ++i) {
    specs[static_cast<std::size_t>(i)].unit = 2 * i;  // every other unit has no parameters
    specs[static_cast<std::size_t>(i)].shape = {250};
  }
  const auto first_units = [&](int stage, BucketSizes buckets) {
    std::vector<int> units;
    const Layout layout(pointers(specs), kSingle, LayoutOptions{stage, 1, 0, buckets});
    for (const Block& block : layout.blocks()) units.push_back(block.first_unit);
    return units;
  };
  EXPECT_EQ(first_units(0, {1 << 20, 1 << 20}), (std::vector{0}));
  EXPECT_EQ(first_units(0, {1, 2000}), (std::vector{0, 2, 6, 10}));
  EXPECT_EQ(first_units(2, {1, 1}), (std::vector{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(first_units(3, {1 << 20, 1 << 20}), (std::vector{0, 2, 4, 6, 8, 10}));
}

TEST(Layout, RefusesImpossibleOptions) {
  const std::vector<const ParameterSpec*> none;
  EXPECT_THROW(Layout(none, kSingle, LayoutOptions{4, 1, 0, {}}), InternalError);
  EXPECT_THROW(Layout(none, kSingle, LayoutOptions{1, 2, 2, {}}), InternalError);
  EXPECT_THROW(Layout(none, kSingle, LayoutOptions{0, 2, 0, {}}), InternalError);
}

}  // namespace
}  // namespace troika
