// Each codec between one sender and one receiver: how many bytes, what they say, and what is
// refused.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/compress/codec.h>
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kValues = 1003;

at::Tensor values(std::uint64_t seed, at::ScalarType type = at::kFloat) {
  return at::randn({kValues}, at::make_generator<at::CPUGeneratorImpl>(seed), type);
}

struct TestedCodec {
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<BucketHook> hook;  // the same for averages; null where they draw other numbers
  std::int64_t float_bytes, double_bytes;
};

// Bytes as compressors.h says, in whole 8.
std::vector<TestedCodec> tested_codecs() {
  return {{bf16_codec(), round_to_bf16(), 2008, 2008},
          {fp16_codec(), round_to_fp16(), 2008, 2008},
          {int8_codec(64), compress_to_int8(64), 1072, 1072},      // 1003 + 4 * 16
          {qsgd_codec(9, 3), compress_by_qsgd(9, 3), 1016, 1016},  // 1003 + 4 * 2
          {top_k_codec(0.1), keep_top_k(0.1), 101 * 8, 1216},      // 101 * 12
          {random_k_codec(0.1, 3), nullptr, 408, 101 * 8}};
}

at::Tensor payload_of(const Codec& codec, const at::Tensor& input, const Codec::DrawKey& place) {
  at::Tensor payload =
      at::zeros({codec.payload_bytes(input.numel(), input.scalar_type())}, at::kByte);
  codec.encode(input, payload, place);
  return payload;
}

at::Tensor sent(const Codec& codec, const at::Tensor& input, const Codec::DrawKey& place = {}) {
  const at::Tensor payload = payload_of(codec, input, place);
  codec.check_payload(payload, input.numel(), input.scalar_type());
  at::Tensor decoded = at::zeros_like(input);
  codec.add_decoded(payload, decoded, place);
  return decoded;
}

TEST(Codecs, SendAsManyBytesAsTheirFormulasSay) {
  for (const TestedCodec& each : tested_codecs()) {
    const std::string name = each.codec->describe();
    EXPECT_EQ(each.codec->payload_bytes(kValues, at::kFloat), each.float_bytes) << name;
    EXPECT_EQ(each.codec->payload_bytes(kValues, at::kDouble), each.double_bytes) << name;
    EXPECT_GT(each.codec->payload_bytes(1, at::kFloat), 0) << name;
  }
}

TEST(Codecs, SayTheSameAsAnAverageOfOneRank) {
  const Group alone;
  for (const TestedCodec& each : tested_codecs()) {
    if (!each.hook) continue;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor input = values(1, type), average = input.clone();
      const GradientBucket bucket{0, average, &alone, {"test", Deadline::in(Seconds(30))}};
      each.hook->start(bucket).wait();
      each.hook->finish(bucket);
      const at::Tensor found = sent(*each.codec, input, {0, 1, 0});
      EXPECT_TRUE(found.equal(average)) << each.codec->describe();
      EXPECT_FALSE(found.equal(input)) << each.codec->describe();
    }
  }
}

TEST(Codecs, AddToWhatIsThere) {
  for (const TestedCodec& each : tested_codecs()) {
    const at::Tensor first = values(1, at::kDouble), second = values(2, at::kDouble);
    const at::Tensor sum = at::zeros_like(first);
    for (const at::Tensor& input : {first, second}) {
      each.codec->add_decoded(payload_of(*each.codec, input, {}), sum, {});
    }
    EXPECT_LT(
        (sum - sent(*each.codec, first) - sent(*each.codec, second)).abs().max().item<double>(),
        1e-12)
        << each.codec->describe();
  }
}

TEST(Codecs, DrawAnewForEachPlace) {
  for (const auto& codec : {random_k_codec(0.1, 3), qsgd_codec(9, 3)}) {
    const at::Tensor input = values(1);
    const at::Tensor first = sent(*codec, input, {1, 2, 3});
    EXPECT_TRUE(sent(*codec, input, {1, 2, 3}).equal(first));
    for (const Codec::DrawKey other : {Codec::DrawKey{0, 2, 3}, {1, 1, 3}, {1, 2, 0}}) {
      EXPECT_FALSE(sent(*codec, input, other).equal(first)) << codec->describe();
    }
  }
  const at::Tensor input = values(1);
  const at::Tensor found = sent(*random_k_codec(0.1, 3), input);
  EXPECT_EQ(found.ne(0).sum().item<std::int64_t>(), 101);
  EXPECT_TRUE(found.equal(at::where(found.ne(0), input, at::zeros_like(input))));
  EXPECT_TRUE(sent(*random_k_codec(1), input).equal(input));
  EXPECT_TRUE(sent(*top_k_codec(1), input).equal(input));
}

TEST(Codecs, TellWhatIsNotFinite) {
  for (const TestedCodec& each : tested_codecs()) {
    for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      const at::Tensor input = values(1);
      input[17] = value;
      EXPECT_FALSE(at::isfinite(sent(*each.codec, input)).all().item<bool>())
          << each.codec->describe();
    }
  }
}

TEST(Codecs, RefuseWhatIsNoPayloadOfSoManyElements) {
  for (const TestedCodec& each : tested_codecs()) {
    const at::Tensor payload = payload_of(*each.codec, values(1), {});
    const std::int64_t bytes = payload.numel();
    for (const std::int64_t cut :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{8}, bytes / 2, bytes - 8, bytes - 1}) {
      try {
        each.codec->check_payload(payload.narrow(0, 0, cut), kValues, at::kFloat);
        ADD_FAILURE() << each.codec->describe() << " of " << cut << " bytes";
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr(each.codec->describe()));
        EXPECT_THAT(error.what(), HasSubstr("has sent " + std::to_string(cut)));
      }
    }
    EXPECT_THROW(each.codec->check_payload(at::cat({payload, payload}), kValues, at::kFloat),
                 DataError);
  }
}

TEST(Codecs, RefusePlacesThatThereAreNot) {
  const auto codec = top_k_codec(0.1);
  for (const int place : {-1, static_cast<int>(kValues), std::numeric_limits<int>::max(),
                          std::numeric_limits<int>::min()}) {
    const at::Tensor payload = payload_of(*codec, values(1), {});
    payload.view(at::kInt)[101 + 5].fill_(place);
    EXPECT_THROW(codec->check_payload(payload, kValues, at::kFloat), DataError) << place;
  }
}

TEST(Codecs, TakeAnyBytesOfTheRightSize) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  int refused = 0;
  for (const TestedCodec& each : tested_codecs()) {
    for (int i = 0; i < 50; ++i) {
      const at::Tensor bytes = at::randint(256, {each.float_bytes}, generator, at::kByte);
      try {
        each.codec->check_payload(bytes, kValues, at::kFloat);
      } catch (const DataError&) {
        ++refused;  // of top_k's places all but few are wrong
        continue;
      }
      each.codec->add_decoded(bytes, at::zeros({kValues}), {});
    }
  }
  EXPECT_EQ(refused, 50);
}

TEST(Codecs, AreWhatKindsMake) {
  for (const CompressKind* const kind : CompressKind::all()) {
    const auto codec = kind->codec(kind->defaults(), 7);
    const bool is_pointwise = kind->name() != "none" && kind->name() != "power_sgd";
    ASSERT_EQ(codec != nullptr, is_pointwise) << kind->name();
    if (!codec) continue;
    EXPECT_THAT(codec->describe(), HasSubstr(std::string(kind->name())));
    EXPECT_EQ(codec->is_biased(), kind->name() != "qsgd");
  }
  EXPECT_NE(int8_codec(64)->describe(), int8_codec(128)->describe());
  EXPECT_NE(qsgd_codec(9, 3)->describe(), qsgd_codec(9, 4)->describe());
  EXPECT_NE(top_k_codec(0.1)->describe(), top_k_codec(0.2)->describe());
  EXPECT_NE(random_k_codec(0.1, 3)->describe(), random_k_codec(0.1, 4)->describe());
}

}  // namespace
}  // namespace troika
