// The ranks of a host take its devices in turn; the test device has four.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/device/choose.h>

#include "device/backend/test_device.h"

namespace troika::test {
namespace {

using ::testing::HasSubstr;

TEST(DeviceChoice, TakesDevicesInTurn) {
  for (int rank = 0; rank < kTestDevices; ++rank) {
    EXPECT_EQ(choose_device("hpu", {rank, kTestDevices}, "device"), test_device(rank));
  }
  EXPECT_EQ(choose_device("hpu:2", {7, 8}, "device"), test_device(2));
  // What each rank sees is its own.
  EXPECT_EQ(choose_device("hpu", {6, 8, true}, "device"), test_device(2));
}

TEST(DeviceChoice, RefusesMoreRanksThanDevices) {
  const auto error_of = [](const std::string& word, HostPlace place) -> std::string {
    try {
      (void)choose_device(word, place, "train.device");
    } catch (const UsageError& error) {
      return std::string(error.what()) + "\n" + error.hint();
    }
    return "";
  };
  EXPECT_THAT(error_of("hpu", {0, 5}), HasSubstr("5 ranks on this host, and 4 hpu devices"));
  EXPECT_THAT(error_of("hpu", {0, 5}), HasSubstr("\"hpu:0\" to share one"));
  EXPECT_THAT(error_of("hpu:4", {0, 1}), HasSubstr("there are 4 hpu devices, counted from 0"));
}

}  // namespace
}  // namespace troika::test
