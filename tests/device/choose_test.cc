// The ranks of a host take its devices in turn; the test device has four.
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/device/choose.h>

#include "device/backend/test_device.h"

namespace troika::test {
namespace {

TEST(DeviceChoice, TakesDevicesInTurn) {
  for (int rank = 0; rank < kTestDevices; ++rank) {
    EXPECT_EQ(choose_device("hpu", {rank, kTestDevices}, "device"), test_device(rank));
  }
  EXPECT_EQ(choose_device("hpu:2", {7, 8}, "device"), test_device(2));
  // What each rank sees is its own.
  EXPECT_EQ(choose_device("hpu", {6, 8, true}, "device"), test_device(2));
}

TEST(DeviceChoice, RefusesMoreRanksThanDevices) {
  const auto error_of = [](const std::string& word, HostPosition place) -> std::string {
    try {
      (void)choose_device(word, place, "train.device");
    } catch (const UsageError& error) {  // exit code 2
      return std::string(error.what()) + "\n" + error.hint();
    }
    return "";
  };
  EXPECT_EQ(error_of("hpu", {0, 5}),
            "train.device = \"hpu\": 5 ranks on this host, and 4 hpu devices\n"
            "start 4 ranks a host, or write train.device = \"hpu:0\" to share one");
  EXPECT_EQ(error_of("hpu:4", {0, 1}),
            "train.device = \"hpu:4\": there are 4 hpu devices, counted from 0\n");
}

TEST(DeviceChoice, GivesEachRankADeviceOfItsKind) {
  EXPECT_EQ(ranks_with_a_device("hpu"), kTestDevices);
  EXPECT_EQ(ranks_with_a_device("hpu:1"), 1);
}

}  // namespace
}  // namespace troika::test
