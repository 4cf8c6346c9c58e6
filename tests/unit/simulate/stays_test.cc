#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/simulate/stays.h>

#include <cmath>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

std::string refused_stays(std::vector<double> joins, const std::vector<std::string>& leaves) {
  try {
    static_cast<void>(worker_stays(2, std::move(joins), leaves));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Stays, AreThoseOfTheStartAndThoseThatJoinByTime) {
  EXPECT_TRUE(worker_stays(2, {}, {}).empty());
  const std::vector<std::string> leaves = {"3@60", "0@7.5"};
  SimulatedJob job;
  job.stays = worker_stays(2, {50, 20}, leaves);
  job.speeds.assign(4, 1);
  EXPECT_EQ(job.starting(), 2);
  const std::vector<double> joins = {0, 0, 20, 50}, until = {7.5, INFINITY, INFINITY, 60};
  for (int worker = 0; worker < 4; ++worker) {
    EXPECT_EQ(job.stay(worker).joins, joins[static_cast<std::size_t>(worker)]);
    EXPECT_EQ(job.stay(worker).leaves, until[static_cast<std::size_t>(worker)]);
  }
  // global_batch_size / 2 samples take a second.
  EXPECT_EQ(job.seconds(3, 12, 12), 2);
}

TEST(Stays, RefuseWhatIsNone) {
  EXPECT_THAT(refused_stays({0}, {}), HasSubstr("a second above 0"));
  EXPECT_THAT(refused_stays({-1}, {}), HasSubstr("a second above 0"));
  EXPECT_THAT(refused_stays({5}, {"3@9"}), HasSubstr("they are 0 to 2"));
  EXPECT_THAT(refused_stays({}, {"-1@9"}), HasSubstr("they are 0 to 1"));
  EXPECT_THAT(refused_stays({}, {"1"}), HasSubstr("is not WORKER@SECONDS"));
  EXPECT_THAT(refused_stays({}, {"1@soon"}), HasSubstr("is not WORKER@SECONDS"));
  EXPECT_THAT(refused_stays({}, {"1@nan"}), HasSubstr("is not WORKER@SECONDS"));
  EXPECT_THAT(refused_stays({5}, {"2@5"}), HasSubstr("no later than that worker joins"));
  EXPECT_THAT(refused_stays({}, {"1@5", "1@6"}), HasSubstr("has left already"));
}

}  // namespace
}  // namespace troika
