#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/launch/cores.h>

#include <numeric>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CoreList up_to(int count) {
  CoreList cores(static_cast<std::size_t>(count));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

std::vector<CoreList> divided(const std::vector<std::string>& nearest, const CoreList& allowed) {
  std::vector<CoreList> lists;
  for (const std::string& each : nearest) lists.push_back(parse_core_list(each));
  return divide_cores(lists, allowed);
}

TEST(Cores, AreReadAsLinuxListsThem) {
  EXPECT_THAT(parse_core_list("0-2,8,10-11"), ElementsAre(0, 1, 2, 8, 10, 11));
  EXPECT_THAT(parse_core_list("5"), ElementsAre(5));
  for (const char* wrong : {"", "x", "3-1", "-1", "1-", "1;2", "0-99999999", "4,,5"}) {
    EXPECT_THAT(parse_core_list(wrong), IsEmpty()) << wrong;
  }
}

TEST(Cores, AreThoseNearestToTheDevice) {
  EXPECT_THAT(divided({"4-7", "0-3"}, up_to(8)),
              ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3)));
}

// Cores 0 to 3 have their second threads as 8 to 11.
TEST(Cores, AreSharedWithBothOfTheirThreads) {
  EXPECT_THAT(divided({"0-3,8-11", "4-7,12-15", "0-3,8-11"}, up_to(16)),
              ElementsAre(ElementsAre(0, 1, 8, 9), ElementsAre(4, 5, 6, 7, 12, 13, 14, 15),
                          ElementsAre(2, 3, 10, 11)));
}

TEST(Cores, AreSharedWhereTheyDoNotDivideEvenly) {
  EXPECT_THAT(divided({"0-4", "0-4"}, up_to(8)),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
  // Each run alone is too short for two.
  EXPECT_THAT(divided({"0,4", "0,4"}, up_to(8)), ElementsAre(ElementsAre(0), ElementsAre(4)));
}

TEST(Cores, AreAllowedOnes) {
  EXPECT_THAT(divided({"0-3", "4-7"}, {2, 3, 4}), ElementsAre(ElementsAre(2, 3), ElementsAre(4)));
}

TEST(Cores, AreNoneWhereBindingWouldHarm) {
  EXPECT_THAT(divided({"", "0-1"}, up_to(4)), ElementsAre(IsEmpty(), ElementsAre(0, 1)));
  EXPECT_THAT(divided({"8-9"}, up_to(4)), ElementsAre(IsEmpty()));
  EXPECT_THAT(divided({"0", "0"}, up_to(4)), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(divided({}, up_to(4)), IsEmpty());
}

TEST(Cores, OfThisProcessAreKnown) {
  EXPECT_FALSE(allowed_cores().empty());
}

}  // namespace
}  // namespace troika
