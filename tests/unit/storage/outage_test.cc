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

TEST(Outage, IsToldOnceHoweverManyRequestsFail) {
  OutageNotice notice;
  EXPECT_TRUE(notice.begins(1000));
  for (double now = 1001; now < 1300; now += 33) EXPECT_FALSE(notice.begins(now)) << now;
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
