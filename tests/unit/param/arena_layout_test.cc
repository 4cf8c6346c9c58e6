// How buckets, shards and ranges are cut, for many shapes drawn at random.
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/param/arena_layout.h>

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
    spec.keep_fp32 = stream.below(draw++, 5) == 0;
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
  std::vector<ArenaLayout> layouts;  // by shard
};

Cut cut(std::uint64_t seed, int stage, int shards, NumericTypes types, BucketSizes buckets = {}) {
  Cut result{random_specs(seed), {}};
  for (int shard = 0; shard < shards; ++shard) {
    result.layouts.emplace_back(pointers(result.specs), types,
                                ArenaLayoutOptions{stage, shards, shard, buckets});
  }
  return result;
}

void expect_every_element_once(const Cut& cut) {
  for (std::size_t p = 0; p < cut.specs.size(); ++p) {
    const std::int64_t count = cut.specs[p].local_count();
    std::vector<ShardRange> ranges;
    for (const ArenaLayout& layout : cut.layouts) {
      for (const ShardRange& range : layout.shard_ranges()) {
        if (range.parameter == p) ranges.push_back(range);
      }
    }
    std::int64_t covered = 0;
    for (const ShardRange& range : ranges) {  // shards are in the order of memory
      EXPECT_EQ(range.begin, covered);
      EXPECT_EQ(range.begin % kChunkElements, 0) << "a chunk is cut";
      covered += range.count;
    }
    EXPECT_EQ(covered, count);
    EXPECT_FALSE(ranges.empty());
    if (cut.specs[p].whole_matrix) {
      EXPECT_EQ(ranges.size(), 1U);
    }
  }
}

void expect_borders(const ArenaLayout& layout, std::size_t shards) {
  std::int64_t end = 0, value_end = 0;
  for (const Bucket& bucket : layout.buckets()) {
    ASSERT_EQ(bucket.borders.size(), shards + 1);
    ASSERT_EQ(bucket.working_borders.size(), shards + 1);
    EXPECT_EQ(bucket.borders.front(), end);
    EXPECT_EQ(bucket.working_borders.front(), value_end);
    EXPECT_TRUE(std::ranges::is_sorted(bucket.borders));
    EXPECT_TRUE(std::ranges::is_sorted(bucket.working_borders));
    for (const std::int64_t border : bucket.working_borders) EXPECT_EQ(border % 64, 0);
    for (const std::int64_t border : bucket.borders) EXPECT_EQ(border % 32, 0);
    end = bucket.borders.back();
    value_end = bucket.working_borders.back();
  }
  EXPECT_EQ(end, layout.elements());
  EXPECT_EQ(value_end, layout.working_bytes());
}

TEST(ArenaLayout, PutsEveryElementIntoOneShardWithBordersAtChunks) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const int shards = 1 + static_cast<int>(seed % 7);
    const int stage = 1 + static_cast<int>(seed % 3);
    const Cut result = cut(seed, stage, shards, seed % 2 == 0 ? kMixed : kSingle,
                           {.first_bytes = 40000, .bytes = 300000});
    expect_every_element_once(result);
    std::int64_t own = 0, own_values = 0;
    for (const ArenaLayout& layout : result.layouts) {
      expect_borders(layout, static_cast<std::size_t>(shards));
      EXPECT_TRUE(std::ranges::equal(layout.buckets().front().borders,
                                     result.layouts[0].buckets().front().borders));
      own += layout.own_elements();
      own_values += layout.own_working_bytes();
    }
    EXPECT_EQ(own, result.layouts[0].elements());
    EXPECT_EQ(own_values, result.layouts[0].working_bytes());
  }
}

TEST(ArenaLayout, BalancesShardsOverAllBucketsTogether) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Cut result{random_specs(seed), {}};
    for (ParameterSpec& spec : result.specs) spec.whole_matrix = false;
    for (const int stage : {1, 3}) {
      for (const int shards : {2, 3, 4}) {
        for (int shard = 0; shard < shards; ++shard) {
          const ArenaLayout layout(pointers(result.specs), kMixed,
                                   ArenaLayoutOptions{stage, shards, shard, {}});
          const std::int64_t share = layout.elements() / shards;
          EXPECT_LE(std::abs(layout.own_elements() - share), 2 * kChunkElements)
              << seed << ", " << shards << " shards, stage " << stage;
        }
      }
    }
  }
}

// Shards of what is trained are cut as if there were nothing frozen, which comes behind it.
TEST(ArenaLayout, CutsTrainedParametersAsIfTheyWereAlone) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const int shards = 1 + static_cast<int>(seed % 4), stage = 1 + static_cast<int>(seed % 3);
    std::vector<ParameterSpec> trained = random_specs(seed), all = trained;
    for (ParameterSpec& spec : random_specs(seed + 1000)) {
      spec.frozen = true;
      all.push_back(spec);
    }
    Cut result{all, {}};
    for (int shard = 0; shard < shards; ++shard) {
      const ArenaLayoutOptions options{
          stage, shards, shard, {.first_bytes = 40000, .bytes = 300000}};
      result.layouts.emplace_back(pointers(all), kMixed, options);
      const ArenaLayout alone(pointers(trained), kMixed, options), &layout = result.layouts.back();
      EXPECT_EQ(layout.trained_elements(), alone.elements());
      EXPECT_EQ(layout.own_trained_elements(), alone.own_elements());
      ASSERT_EQ(layout.trained_buckets().size(), alone.buckets().size());
      for (std::size_t i = 0; i < layout.buckets().size(); ++i) {
        EXPECT_EQ(layout.buckets()[i].frozen, i >= alone.buckets().size());
        if (i >= alone.buckets().size()) continue;
        EXPECT_EQ(layout.buckets()[i].borders, alone.buckets()[i].borders);
        EXPECT_EQ(layout.buckets()[i].own_offset, alone.buckets()[i].own_offset);
      }
      expect_borders(layout, static_cast<std::size_t>(shards));
    }
    expect_every_element_once(result);
  }
}

TEST(ArenaLayout, GroupsUnitsIntoBucketsFromTheLast) {
  std::vector<ParameterSpec> specs(6);
  for (int i = 0; i < 6; ++i) {
    specs[static_cast<std::size_t>(i)].unit = 2 * i;  // every other unit has no parameters
    specs[static_cast<std::size_t>(i)].shape = {250};
  }
  const auto first_units = [&](int stage, BucketSizes buckets) {
    std::vector<int> units;
    const ArenaLayout layout(pointers(specs), kSingle, ArenaLayoutOptions{stage, 1, 0, buckets});
    for (const Bucket& bucket : layout.buckets()) units.push_back(bucket.first_unit);
    return units;
  };
  EXPECT_EQ(first_units(0, {1 << 20, 1 << 20}), (std::vector{0}));
  EXPECT_EQ(first_units(0, {1, 2000}), (std::vector{0, 2, 6, 10}));
  EXPECT_EQ(first_units(2, {1, 1}), (std::vector{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(first_units(3, {1 << 20, 1 << 20}), (std::vector{0, 2, 4, 6, 8, 10}));
}

TEST(ArenaLayout, RefusesImpossibleOptions) {
  const std::vector<const ParameterSpec*> none;
  EXPECT_THROW(ArenaLayout(none, kSingle, ArenaLayoutOptions{4, 1, 0, {}}), InternalError);
  EXPECT_THROW(ArenaLayout(none, kSingle, ArenaLayoutOptions{1, 2, 2, {}}), InternalError);
  EXPECT_THROW(ArenaLayout(none, kSingle, ArenaLayoutOptions{0, 2, 0, {}}), InternalError);
  std::vector<ParameterSpec> specs(2);
  specs[0].frozen = true;
  EXPECT_THROW(ArenaLayout(pointers(specs), kSingle, ArenaLayoutOptions{}), InternalError);
}

}  // namespace
}  // namespace troika
