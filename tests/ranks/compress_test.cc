// Compressed averages over several ranks: they are averages, the same on all ranks, lose nothing,
// and send as many bytes as compressors.h says.
#include <ATen/ATen.h>
#include <troika/compress/compressors.h>
#include <troika/sync/compression_state.h>

#include <map>
#include <string>
#include <vector>

#include "ranks/compressed.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

at::Tensor mean_gradients(int ranks, int step, at::ScalarType type) {
  at::Tensor sum = at::zeros({kElements}, type);
  for (int rank = 0; rank < ranks; ++rank) sum += gradients_of(rank, step, type);
  return sum / ranks;
}

at::Tensor averaged(BucketHook& hook, const Group& group, const at::Tensor& gradients,
                    bool applied = true) {
  at::Tensor values = gradients.clone();
  const GradientBucket bucket{0, values, &group, Rank::call("bucket"), bucket_parts()};
  hook.start(bucket).wait();
  hook.finish(bucket);
  hook.end_step(applied);
  return values;
}

BucketMemory& memory(BucketHook& hook, const Group& group, const at::Tensor& like) {
  return *hook.memory({0, like, &group, Rank::call("bucket"), bucket_parts()});
}

RANK_TEST(Compress, EverythingIsTheAverage, 1, 2, 3) {
  const Group group = rank.group();
  const PowerSgd full{.rank = kColumns, .small = PowerSgd::Small::kFactorised};
  for (const Hook& hook : {keep_top_k(1), keep_random_k(1), compress_by_power_sgd(full)}) {
    for (int step = 0; step < 3; ++step) {
      const at::Tensor found =
          averaged(*hook, group, gradients_of(rank.index(), step, at::kDouble));
      const at::Tensor expected = mean_gradients(rank.size(), step, at::kDouble);
      EXPECT_LT((found - expected).abs().max().item<double>(), 1e-10) << step;
    }
  }
}

RANK_TEST(Compress, IsTheSameOnAllRanksAndLosesNothing, 2, 3) {
  const Group group = rank.group();
  for (const TestedCompressor& kind : tested_compressors()) {
    const Hook hook = kind.make();
    at::Tensor sent = at::zeros({kElements}), expected = at::zeros({kElements});
    for (int step = 0; step < 5; ++step) {
      const at::Tensor own = gradients_of(rank.index(), step, at::kFloat);
      (void)averaged(*hook, group, own * 3, /*applied=*/false);  // leaves no trace
      const at::Tensor found = averaged(*hook, group, own);
      const at::Tensor of_first = found.clone();
      group.broadcast(of_first, 0, Rank::call("first")).wait();
      EXPECT_TRUE(found.equal(of_first)) << kind.name;
      sent += found;
      expected += mean_gradients(rank.size(), step, at::kFloat);
    }
    if (kind.name == "qsgd") continue;
    // What has been sent and the mean of what is left are all that there was. The mean of rounded
    // values is rounded once more, which no error keeps.
    at::Tensor left = memory(*hook, group, sent).error.clone();
    group.all_reduce(left, ReduceOp::kAverage, Rank::call("errors")).wait();
    const bool rounds_means = kind.name == "bf16" || kind.name == "fp16";
    EXPECT_LT((sent + left - expected).abs().max().item<double>(), rounds_means ? 5e-2 : 1e-5)
        << kind.name;
    if (!rounds_means) {
      EXPECT_GT((sent - expected).abs().max().item<double>(), 1e-4) << kind.name;
    }
  }
}

RANK_TEST(Compress, SendsWhatItsFormulaSays, 2, 3) {
  const Group group = rank.group();
  for (const TestedCompressor& kind : tested_compressors()) {
    const Hook hook = kind.make();
    const at::Tensor own = gradients_of(rank.index(), 0, at::kFloat);
    for (int step = 0; step < 2; ++step) {
      const std::uint64_t before = group.input_bytes();
      (void)averaged(*hook, group, own);
      EXPECT_EQ(group.input_bytes() - before, static_cast<std::uint64_t>(kind.bytes)) << kind.name;
    }
  }
}

// The errors of several replicas go on where there are as many; elsewhere all get an equal part of
// their sum.
RANK_TEST(Compress, StateGoesOnOnAnotherNumberOfReplicas, 2) {
  const Group all = rank.group(), alone;
  const at::Tensor error = at::full({3}, rank.index() + 1.0), factor = at::full({2, 1}, 5.0);
  ShardDescriptor shard = ShardDescriptor::whole({3}, true);
  const std::vector<CompressedPart> parts = {{"w", shard, error, factor}};
  StateDict state;
  CompressionState("replica", all).save(state, parts, Rank::call("errors"));
  std::map<std::string, at::Tensor> saved;
  for (const StateTensor& each : state.tensors()) saved[each.name] = each.tensor.clone();
  EXPECT_TRUE(saved.at("compress.error.w").equal(at::full({3}, 3.0)));
  EXPECT_TRUE(saved.at("compress.factor.w").equal(at::full({2}, 5.0)));
  const auto owned = [&](const std::string& name) {
    for (const StateTensor& each : state.tensors()) {
      if (each.name == name) return each.shard.owned;
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(owned("replica." + std::to_string(rank.index()) + ".compress.error.w"), 3);
  EXPECT_EQ(owned("compress.error.w"), rank.index() == 0 ? 3 : 0);

  const auto has = [](const std::string& name) { return !name.starts_with("replica.2."); };
  const auto restored = [&](const Group& group) {
    const at::Tensor values = at::zeros({3}), factors = at::zeros({2, 1});
    const std::vector<CompressedPart> there = {{"w", shard, values, factors}};
    StateDict places;
    const CompressionState kept("replica", group);
    kept.add_places(places, there, has);
    for (const StateTensor& each : places.tensors()) {
      at::Tensor(each.tensor).copy_(saved.at(each.name));
    }
    kept.load(state, there);
    EXPECT_TRUE(factors.equal(factor.to(at::kFloat)));
    return values;
  };
  EXPECT_TRUE(restored(all).equal(error.to(at::kFloat)));
  EXPECT_TRUE(restored(alone).equal(at::full({3}, 3.0)));
}

}  // namespace
}  // namespace troika::test
