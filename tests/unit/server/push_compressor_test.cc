// What a worker keeps of what it has not pushed.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/push_compressor.h>
#include <troika/server/server_shard.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace troika {
namespace {

constexpr std::int64_t kParameters = 1003;
constexpr int kShards = 3;

using Codecs = std::vector<std::shared_ptr<const Codec>>;

Codecs biased_codecs() {
  return {bf16_codec(), fp16_codec(), int8_codec(64), top_k_codec(0.1), random_k_codec(0.1, 7)};
}

Codecs all_codecs() {
  Codecs codecs = biased_codecs();
  codecs.push_back(qsgd_codec(4, 3));
  return codecs;
}

// Of many sizes, beyond fp16's range and below it.
at::Tensor gradients_of(std::uint64_t seed, at::ScalarType type = at::kDouble) {
  const auto normal = [&](std::uint64_t from) {
    return at::randn({kParameters}, at::make_generator<at::CPUGeneratorImpl>(from), type);
  };
  return normal(seed) * at::pow(10, normal(99 + seed) * 3);
}

std::vector<std::byte> payloads_of(const PushCompressor& compressor, int shards = kShards) {
  std::vector<std::byte> all;
  for (int shard = 0; shard < shards; ++shard) {
    const auto payload = compressor.payload(shard);
    all.insert(all.end(), payload.begin(), payload.end());
  }
  return all;
}

// Returns what servers decode.
at::Tensor decoded(const Codec& codec, const PushCompressor& compressor, std::int64_t round,
                   int sender) {
  at::Tensor all = at::full({kParameters}, std::nan(""), at::kDouble);
  for (int shard = 0; shard < kShards; ++shard) {
    const IndexRange range = shard_range(kParameters, shard, kShards);
    decode_push(codec, compressor.payload(shard), all.narrow(0, range.first, range.count),
                {shard, round, sender});
  }
  return all;
}

TEST(PushCompressor, SendsAPayloadOfItsSizeToEachServer) {
  for (const auto& codec : all_codecs()) {
    PushCompressor compressor(codec);
    compressor.encode(gradients_of(1), kShards, 1, 1, 0);
    for (int shard = 0; shard < kShards; ++shard) {
      const IndexRange range = shard_range(kParameters, shard, kShards);
      EXPECT_EQ(std::ssize(compressor.payload(shard)),
                codec->payload_bytes(range.count, at::kDouble))
          << codec->describe();
    }
  }
}

TEST(PushCompressor, WhatIsSentAndWhatIsKeptIsTheInputToTheBit) {
  for (const auto& codec : biased_codecs()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      PushCompressor compressor(codec);
      at::Tensor before = at::zeros({kParameters}, type);
      for (int round = 1; round <= 4; ++round) {
        const at::Tensor gradients = gradients_of(static_cast<std::uint64_t>(round), type);
        const at::Tensor input = before + gradients;
        compressor.encode(gradients, kShards, 1, round, 2);
        compressor.end_push(true);
        EXPECT_TRUE((compressor.error() + gradients).equal(input)) << codec->describe();
        EXPECT_FALSE(gradients.equal(input)) << codec->describe();
        before = compressor.error().clone();
      }
    }
  }
}

TEST(PushCompressor, LeavesWhatServersDecode) {
  for (const auto& codec : all_codecs()) {
    PushCompressor compressor(codec);
    for (int round = 1; round <= 3; ++round) {
      const at::Tensor gradients = gradients_of(static_cast<std::uint64_t>(round));
      compressor.encode(gradients, kShards, 1, round, 5);
      compressor.end_push(true);
      EXPECT_TRUE(decoded(*codec, compressor, round, 5).equal(gradients)) << codec->describe();
    }
    EXPECT_EQ(compressor.error().defined(), codec->is_biased());
  }
}

// Pushes of many targets and of few: what is missing of an update is made up for in a later one.
TEST(PushCompressor, KeepsErrorsInUnitsOfUpdates) {
  for (const auto& codec : biased_codecs()) {
    PushCompressor compressor(codec);
    at::Tensor updates = at::zeros({kParameters}, at::kDouble), expected = updates.clone();
    for (int round = 1; round <= 5; ++round) {
      const double unit = 1.0 / (round * round);
      const at::Tensor gradients = at::randn(
          {kParameters},
          at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(round)), at::kDouble);
      expected += gradients * unit;
      compressor.encode(gradients, kShards, unit, round, 0);
      compressor.end_push(true);
      updates += gradients * unit;
    }
    EXPECT_GT((updates - expected).abs().max().item<double>(), 1e-5) << codec->describe();
    EXPECT_LT((updates + compressor.error() - expected).abs().max().item<double>(), 1e-12)
        << codec->describe();
  }
}

TEST(PushCompressor, CountsAPushOnceAndOnlyIfItIsApplied) {
  for (const auto& codec : all_codecs()) {
    PushCompressor compressor(codec), other(codec);
    for (PushCompressor* const each : {&compressor, &other}) {
      each->encode(gradients_of(1), kShards, 1, 1, 0);
      each->end_push(true);
    }
    compressor.encode(gradients_of(2) * 1000, kShards, 1, 2, 0);
    compressor.end_push(false);
    compressor.encode(gradients_of(3) * 1000, kShards, 1, 2, 0);  // and nothing ends it
    for (PushCompressor* const each : {&compressor, &other}) {
      each->encode(gradients_of(4), kShards, 1, 2, 0);
      each->end_push(true);
      each->end_push(true);
      each->end_push(false);
    }
    EXPECT_EQ(payloads_of(compressor), payloads_of(other)) << codec->describe();
    if (codec->is_biased()) {
      EXPECT_TRUE(compressor.error().equal(other.error())) << codec->describe();
    }
    compressor.reset();
    EXPECT_FALSE(compressor.error().defined());
    PushCompressor fresh(codec);
    for (PushCompressor* const each : {&compressor, &fresh}) {
      each->encode(gradients_of(5), kShards, 1, 3, 0);
    }
    EXPECT_EQ(payloads_of(compressor), payloads_of(fresh)) << codec->describe();
  }
}

TEST(PushCompressor, TakesServersWithoutParameters) {
  for (const auto& codec : all_codecs()) {
    PushCompressor compressor(codec);
    const at::Tensor gradients = at::ones({2}, at::kDouble);
    compressor.encode(gradients, 3, 1, 1, 0);
    EXPECT_EQ(std::ssize(compressor.payload(0)), codec->payload_bytes(1, at::kDouble));
    EXPECT_TRUE(compressor.payload(2).empty());
    const at::Tensor none = at::zeros({0}, at::kDouble);
    decode_push(*codec, compressor.payload(2), none, {2, 1, 0});
    EXPECT_THROW(decode_push(*codec, compressor.payload(0), none, {2, 1, 0}), DataError);
  }
}

TEST(PushCompressor, RefusesAPayloadThatIsCutOff) {
  for (const auto& codec : all_codecs()) {
    PushCompressor compressor(codec);
    compressor.encode(gradients_of(1), 1, 1, 1, 0);
    const auto payload = compressor.payload(0);
    const at::Tensor gradient = at::zeros({kParameters}, at::kDouble);
    for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, payload.size() / 2,
                                  payload.size() - 8, payload.size() - 1}) {
      EXPECT_THROW(decode_push(*codec, payload.first(cut), gradient, {0, 1, 0}), DataError)
          << codec->describe() << " " << cut;
    }
  }
}

}  // namespace
}  // namespace troika
