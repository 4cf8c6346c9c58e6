#include <gtest/gtest.h>
#include <troika/base/random.h>

#include <cmath>

namespace troika {
namespace {

// The known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL, 0x85a308d3243f6a88ULL),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, HasTheMomentsOfItsDistributions) {
  const RandomStream stream(stream_key(1337, "moments"));
  constexpr int kDraws = 200000;
  double uniform = 0, normal = 0, square = 0;
  for (int i = 0; i < kDraws; ++i) {
    uniform += stream.uniform(i);
    const double z = stream.normal(i);
    normal += z;
    square += z * z;
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal / kDraws, 0.0, 0.01);
  EXPECT_NEAR(square / kDraws, 1.0, 0.02);
}

TEST(RandomStream, StaysBelowItsBound) {
  const RandomStream stream(stream_key(1, "bound"));
  for (int i = 0; i < 1000; ++i) EXPECT_LT(stream.below(i, 7), 7U);
}

TEST(RandomStream, DiffersByNameSeedAndSubstream) {
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
  EXPECT_NE(RandomStream(5, 0).bits(0), RandomStream(5, 1).bits(0));
}

}  // namespace
}  // namespace troika
