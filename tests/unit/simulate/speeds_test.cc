#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/simulate/speeds.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<double> drawn(const std::string& rule, int workers, std::uint64_t seed = 1) {
  return draw_speeds(parse_speeds(rule), workers, seed);
}

std::string refusal(const std::string& rule, int workers = 2) {
  try {
    static_cast<void>(drawn(rule, workers));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Speeds, AreWhatTheRuleSays) {
  EXPECT_THAT(drawn("constant(2)", 3), Each(2));
  EXPECT_THAT(drawn(" list( 1, 0.5,2 ) ", 3), ElementsAre(1, 0.5, 2));
  EXPECT_THAT(drawn("lognormal(3, 0)", 2), Each(3));
  for (const double speed : drawn("uniform(0.5, 0.75)", 1000)) {
    EXPECT_GE(speed, 0.5);
    EXPECT_LE(speed, 0.75);
  }
}

// With 10,001 draws the median of exp(0.5 z) is within 3 %, and the deviation of its logarithm,
// too, four times over.
TEST(Speeds, AreDistributedAsTheySay) {
  std::vector<double> speeds = drawn("lognormal(2, 0.5)", 10'001);
  double squares = 0;
  for (const double speed : speeds) squares += std::pow(std::log(speed / 2), 2);
  EXPECT_NEAR(std::sqrt(squares / 10'001), 0.5, 0.015);
  std::ranges::sort(speeds);
  EXPECT_NEAR(speeds[5000], 2, 0.06);
  double sum = 0;
  for (const double speed : drawn("uniform(1, 3)", 10'001)) sum += speed;
  EXPECT_NEAR(sum / 10'001, 2, 0.025);
}

TEST(Speeds, ComeAgainWithTheSeed) {
  EXPECT_EQ(drawn("lognormal(1, 0.5)", 5, 7), drawn("lognormal(1, 0.5)", 5, 7));
  EXPECT_NE(drawn("lognormal(1, 0.5)", 5, 7), drawn("lognormal(1, 0.5)", 5, 8));
  std::vector<double> more = drawn("lognormal(1, 0.5)", 9, 7);
  more.resize(5);
  EXPECT_EQ(more, drawn("lognormal(1, 0.5)", 5, 7));
}

TEST(Speeds, RefuseWhatIsNoRule) {
  for (const char* rule : {"", "1", "fast(1)", "constant", "constant(1", "(1)"}) {
    EXPECT_THAT(refusal(rule), HasSubstr("is no rule for speeds")) << rule;
  }
  for (const char* rule : {"constant()", "list(1, )", "list(1, x)", "constant(1 2)"}) {
    EXPECT_THAT(refusal(rule), HasSubstr("no number")) << rule;
  }
  EXPECT_THAT(refusal("uniform(1)"), HasSubstr("has 1 number, and uniform takes 2"));
  EXPECT_THAT(refusal("constant(1, 2)"), HasSubstr("has 2 numbers, and constant takes 1"));
  for (const char* rule : {"constant(0)", "list(1, -1)", "lognormal(0, 1)", "uniform(0, 1)"}) {
    EXPECT_THAT(refusal(rule), HasSubstr("a speed that is not from")) << rule;
  }
  EXPECT_THAT(refusal("lognormal(1, -1)"), HasSubstr("a sigma that is not from 0 to 5"));
  EXPECT_THAT(refusal("uniform(2, 1)"), HasSubstr("ends below its beginning"));
  EXPECT_THAT(refusal("list(1, 1, 1)", 2), HasSubstr("a list of 3 speeds for 2 workers"));
}

}  // namespace
}  // namespace troika
