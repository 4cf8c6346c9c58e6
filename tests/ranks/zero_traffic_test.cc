// What ZeRO puts on the wire in a step, against the table of docs/zero.md.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/observe/recorder.h>
#include <troika/param/arena_layout.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "ranks/zero_bench.h"

namespace troika::test {
namespace {

constexpr NumericTypes kPlain{at::kFloat, at::kFloat};
constexpr NumericTypes kHalfWidth{at::kBFloat16, at::kFloat};

// Bytes on the wire in a step: of groups that share, across them, and for norms.
struct Traffic {
  std::int64_t shard = 0, replicate = 0, norms = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

std::ostream& operator<<(std::ostream& out, const Traffic& traffic) {
  return out << "shard " << traffic.shard << ", replicate " << traffic.replicate << ", norms "
             << traffic.norms;
}

// The second of three steps: what it has left under way has ended after the third.
Traffic sent_in_a_step(const std::filesystem::path& recorder, ZeroBench& bench) {
  static_cast<void>(bench.step());
  const std::uint64_t before = read_recorder(recorder).count;
  static_cast<void>(bench.step());
  const std::uint64_t after = read_recorder(recorder).count;
  static_cast<void>(bench.step());
  Traffic traffic;
  for (const RecordedOperation& one : read_recorder(recorder).operations) {
    if (one.sequence <= before || one.sequence > after) continue;
    EXPECT_EQ(one.state, RecordedOperation::State::kFinished) << one.label;
    const bool is_norm = one.label == "gradient norm";
    const bool is_shard = one.axis == "shard";
    (is_norm    ? traffic.norms
     : is_shard ? traffic.shard
                : traffic.replicate) += static_cast<std::int64_t>(one.sent);
  }
  return traffic;
}

// The row of docs/zero.md for N ranks that share, in `groups` groups, times the number of ranks:
// shards are a little uneven, but over all ranks the bytes are exact.
Traffic promised_traffic(const Arena& arena, std::int64_t ranks, std::int64_t groups,
                         std::int64_t microbatches) {
  const ArenaLayout& layout = arena.layout();
  const int stage = arena.sharding().stage;
  const std::int64_t gradients = layout.elements() * 4, values = layout.working_bytes();
  const std::int64_t others = ranks - 1;
  Traffic traffic;
  if (stage == 0) return {.shard = 2 * others * gradients};
  std::int64_t gathered = values;
  if (stage == 3) {
    std::int64_t first_three = 0, last_three = 0;
    const auto buckets = layout.buckets();  // a unit each
    for (std::size_t i = 0; i < 3; ++i) {
      first_three += buckets[i].working_bytes();
      last_three += buckets[buckets.size() - 1 - i].working_bytes();
    }
    // Still there: the last units for a backward pass, the first for the next microbatch.
    gathered =
        2 * microbatches * values - microbatches * last_three - (microbatches - 1) * first_three;
  }
  const bool cuts_each =
      stage > 1 && arena.sharding().cut_gradients == CutGradients::kEachMicrobatch;
  traffic.shard = groups * others * ((cuts_each ? microbatches : 1) * gradients + gathered);
  traffic.replicate = 2 * (groups - 1) * gradients;
  std::int64_t chunks = 0;
  for (const auto& parameter : arena.parameters()) {
    chunks += (parameter->spec().local_count() + kChunkElements - 1) / kChunkElements;
  }
  traffic.norms = groups * ranks * others * chunks * 8;  // few: from every rank to every rank
  return traffic;
}

Traffic sum_over(const Group& ranks, const Traffic& own) {
  const at::Tensor sum = at::tensor({own.shard, own.replicate, own.norms}, at::kLong);
  ranks.all_reduce(sum, ReduceOp::kSum, Rank::call("bytes of all ranks")).wait();
  const auto* values = sum.const_data_ptr<std::int64_t>();
  return {values[0], values[1], values[2]};
}

// Buckets are larger than what an all-reduce sends in one step, which docs/engines.md tells apart.
RANK_FUNCTION(zero_bytes_of_a_step) {
  const int width = std::stoi(rank.argument("shard")), groups = rank.size() / width;
  const auto path = recorder_path(rank.folder(), rank.index());
  Sharding sharding =
      sharding_over(rank, 0, width, Recorder::create(path, rank.index(), "here", 4096));
  const Group all = rank.group("all");
  const ModelOptions model(mlp_kind(), MlpOptions{512, {1024, 512, 1024, 128}, 10});
  for (const NumericTypes types : {kHalfWidth, kPlain}) {
    for (int stage = groups == 1 ? 0 : 1; stage <= 3; ++stage) {
      for (const auto& [microbatches, cut] : {std::pair(1, CutGradients::kLastMicrobatch),
                                              {2, CutGradients::kLastMicrobatch},
                                              {2, CutGradients::kEachMicrobatch}}) {
        sharding.stage = stage;
        sharding.cut_gradients = cut;
        ZeroBench bench({.model = model, .types = types, .microbatches = microbatches, .clip = 0},
                        sharding, rank.index());
        ASSERT_EQ(bench.arena().units(), 5);
        const Traffic own = sent_in_a_step(path, bench);
        const Traffic promised = promised_traffic(bench.arena(), width, groups, microbatches);
        const std::string what = std::string(c10::toString(types.compute)) + ", stage " +
                                 std::to_string(stage) + ", " + std::to_string(microbatches) +
                                 " microbatches" +
                                 (cut == CutGradients::kEachMicrobatch ? ", each cut" : "");
        EXPECT_EQ(sum_over(all, own), promised) << what;
        // A shard is up to two chunks off its share, which goes to each of the others.
        const double share = static_cast<double>(promised.shard) / rank.size();
        EXPECT_NEAR(static_cast<double>(own.shard), share,
                    0.05 * share + 8.0 * (width - 1) * 2 * kChunkElements)
            << what;
      }
    }
  }
}

TEST(Zero, PutsTheBytesOnTheWireThatTheTablePromises) {
  for (const int size : {2, 3}) {
    expect_ranks("zero_bytes_of_a_step", size,
                 {.engine = "gloo", .arguments = {{"shard", std::to_string(size)}}});
  }
}

TEST(Zero, PutsTheBytesOfShardGroupsOnTheWire) {
  expect_ranks("zero_bytes_of_a_step", 4, {.engine = "gloo", .arguments = {{"shard", "2"}}});
}

}  // namespace
}  // namespace troika::test
