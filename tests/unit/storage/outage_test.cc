// When requests to a store that is away are made again, and when somebody is told.
#include <gtest/gtest.h>
#include <troika/storage/object_store.h>
#include <troika/storage/outage.h>

namespace troika::test {
namespace {

TEST(Outage, PausesGrowAndEndWithThePatience) {
  double waited = 0;
  std::vector<double> pauses;
  for (std::int64_t retry = 0; waited < 300; ++retry) {
    pauses.push_back(retry_pause(retry, waited, 300));
    waited += pauses.back();
    ASSERT_LT(retry, 30);
  }
  EXPECT_EQ(pauses[0], 0.5);
  EXPECT_EQ(pauses[1], 1);
  EXPECT_EQ(pauses[5], 16);
  for (std::size_t i = 6; i + 1 < pauses.size(); ++i) EXPECT_EQ(pauses[i], 30);
  EXPECT_EQ(waited, 300);  // the last try is made when the time is over
  EXPECT_EQ(retry_pause(0, 0, 0), 0);
  EXPECT_EQ(retry_pause(1'000'000, 0, 300), 30);
  EXPECT_EQ(retry_pause(3, 400, 300), 0);  // requests themselves take time
}

// What the caller looks at is looked at again before each attempt.
TEST(Outage, AttemptsAreMadeUntilOneGoesWellOrTheReasonStays) {
  double now = 0;
  std::vector<double> attempts;
  const RetryClock clock{[&] { return now; }, [&](double seconds) { now += seconds; }};
  const auto fail_until = [&](double end, const char* reason, double patience) {
    now = 0;
    attempts.clear();
    return repeat_attempts(
        patience,
        [&] {
          attempts.push_back(now);
          return std::string(now < end ? reason : "");
        },
        is_outage, clock);
  };
  EXPECT_EQ(fail_until(5, "NETWORK", 300), "");
  EXPECT_EQ(attempts, (std::vector<double>{0, 0.5, 1.5, 3.5, 7.5}));
  EXPECT_EQ(fail_until(1000, "NETWORK", 40), "NETWORK");
  EXPECT_EQ(attempts.back(), 40);
  EXPECT_EQ(fail_until(1000, "ACCESS_DENIED", 40), "ACCESS_DENIED");
  EXPECT_EQ(attempts, std::vector<double>{0});
  EXPECT_EQ(fail_until(1000, "NETWORK", 0), "NETWORK");
  EXPECT_EQ(attempts, std::vector<double>{0});
}

TEST(Outage, IsToldOnceHoweverManyRequestsFail) {
  OutageNotice notice;
  EXPECT_TRUE(notice.begins(1000));
  for (int now = 1001; now < 1300; now += 33) EXPECT_FALSE(notice.begins(now)) << now;
  EXPECT_TRUE(notice.begins(1400));
}

TEST(Outage, IsWhatMayPass) {
  EXPECT_TRUE(
      is_outage("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 7"));
  EXPECT_TRUE(is_outage("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation"));
  EXPECT_TRUE(is_outage("AWS Error SLOW_DOWN during PutObject operation"));
  EXPECT_FALSE(is_outage("AWS Error ACCESS_DENIED during PutObject operation"));
  EXPECT_FALSE(is_outage("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation"));
  EXPECT_FALSE(is_outage("there is no such bucket, folder or file"));
}

}  // namespace
}  // namespace troika::test
