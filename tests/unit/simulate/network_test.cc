#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/simulate/network.h>

#include <cmath>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Links, AreReadInTheirUnits) {
  const Link link = parse_link("200Mbit/s 5ms");
  EXPECT_DOUBLE_EQ(link.bytes_per_second, 25e6);
  EXPECT_DOUBLE_EQ(link.latency, 0.005);
  EXPECT_DOUBLE_EQ(parse_link(" 300us  1.5GB/s ").bytes_per_second, 1.5e9);
  EXPECT_DOUBLE_EQ(parse_link("300us 1.5GB/s").latency, 300e-6);
  EXPECT_DOUBLE_EQ(parse_link("8kbit/s").bytes_per_second, 1000);
  EXPECT_EQ(parse_link("8kbit/s").latency, 0);
  EXPECT_TRUE(std::isinf(parse_link("2s").bytes_per_second));
  EXPECT_EQ(parse_link("2s").seconds(1e9), 0);
}

TEST(Links, RefuseWhatIsNone) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      static_cast<void>(parse_link(text));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  for (const char* text : {"", " ", "fast", "/s 5ms", "nanMbit/s"}) {
    EXPECT_THAT(refusal(text), HasSubstr("is no link")) << text;
  }
  EXPECT_THAT(refusal("200"), HasSubstr("a number without a unit"));
  EXPECT_THAT(refusal("200 Mbit/s"), HasSubstr("a number without a unit"));
  EXPECT_THAT(refusal("200Mbits"), HasSubstr("the unit 'Mbits', which is none of a link"));
  EXPECT_THAT(refusal("1MB/s 2MB/s"), HasSubstr("has two rates"));
  EXPECT_THAT(refusal("1s 2ms"), HasSubstr("has two latencies"));
  EXPECT_THAT(refusal("0bit/s"), HasSubstr("a rate of nothing"));
  EXPECT_THAT(refusal("-1ms"), HasSubstr("a latency that is not from"));
}

TEST(Links, AllReduceSendsPartsWhereTheyAreLarge) {
  const Link link{1e6, 0.5};
  const CollectiveCost large = all_reduce_cost(link, 4, 800'000);
  EXPECT_DOUBLE_EQ(large.bytes, 1'200'000);
  EXPECT_DOUBLE_EQ(large.seconds, 3 * 0.5 + 1.2);
  const CollectiveCost small = all_reduce_cost(link, 4, 87'381);  // 256 KiB - 1 for its peers
  EXPECT_DOUBLE_EQ(small.bytes, 262'143);
  EXPECT_DOUBLE_EQ(small.seconds, 2 * 0.5 + small.bytes / 1e6);
  EXPECT_EQ(all_reduce_cost(link, 1, 800'000).seconds, 0);
}

// The numbers of what is through, each with its time.
std::vector<std::pair<std::int64_t, double>> all_of(Network& network) {
  std::vector<std::pair<std::int64_t, double>> found;
  while (std::isfinite(network.next())) {
    const double time = network.next();
    for (const std::int64_t number : network.advance(time)) found.emplace_back(number, time);
  }
  return found;
}

TEST(Network, SharesTheLinkOfASenderAndOfAReceiver) {
  Network network(4, {100, 0});
  network.send(0, 1, 100);
  network.send(0, 2, 200);
  network.send(3, 2, 300);
  // 50 a second each. At 2 s 0 has one left with 100 bytes, which shares 2 with 200 from 3 until
  // 4 s; the rest of those alone.
  EXPECT_THAT(all_of(network), ElementsAre(std::pair(0, 2.), std::pair(1, 4.), std::pair(2, 5.)));
}

TEST(Network, UnequalPartsTakeAsLongTogether) {
  Network network(4, {100, 0}, /*unevenness=*/0.5, /*seed=*/7), other(4, {100, 0}, 0.5, 8);
  for (Network* each : {&network, &other}) {
    for (int from = 1; from < 4; ++from) each->send(from, 0, 100);
  }
  const auto found = all_of(network), different = all_of(other);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_LT(found[0].second, 2.9);
  EXPECT_LT(found[0].second, found[1].second);
  EXPECT_LT(found[1].second, found[2].second);
  EXPECT_NEAR(found[2].second, 3, 1e-9);
  EXPECT_NE(found, different);
}

TEST(Network, DirectionsDoNotShare) {
  Network network(2, {100, 0});
  network.send(0, 1, 100);
  network.send(1, 0, 100);
  EXPECT_THAT(all_of(network), ElementsAre(std::pair(0, 1.), std::pair(1, 1.)));
}

TEST(Network, OneThatStartsLaterSlowsTheFirst) {
  Network network(3, {100, 0});
  network.send(0, 2, 100);
  EXPECT_THAT(network.advance(0.5), IsEmpty());
  network.send(1, 2, 100);
  EXPECT_DOUBLE_EQ(network.next(), 1.5);
  EXPECT_THAT(network.advance(1.5), ElementsAre(0));
  EXPECT_DOUBLE_EQ(network.next(), 2);
}

TEST(Network, WithoutALimitNothingTakesTime) {
  Network network(2, Link());
  EXPECT_TRUE(std::isinf(network.next()));
  network.send(0, 1, 1e12);
  EXPECT_EQ(network.next(), 0);
  EXPECT_THAT(network.advance(0), ElementsAre(0));
}

}  // namespace
}  // namespace troika
