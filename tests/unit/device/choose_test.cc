#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/device/choose.h>

namespace troika {
namespace {

using ::testing::HasSubstr;

// What is said of a word on a machine without accelerators.
std::string error_of(const std::string& word, HostPlace place = {}) {
  try {
    (void)choose_device(word, place, "train.device");
  } catch (const UsageError& error) {
    return std::string(error.what()) + "\n" + error.hint();
  }
  return "";
}

TEST(ChooseDevice, FallsBackToTheHostByItself) {
  EXPECT_EQ(choose_device("auto", {0, 1}, "device"), at::Device(at::kCPU));
  EXPECT_EQ(choose_device("cpu", {3, 4}, "device"), at::Device(at::kCPU));
  EXPECT_EQ(device_count(at::kCPU), 1);
}

TEST(ChooseDevice, NamesWhatIsMissing) {
  EXPECT_THAT(error_of("cuda"),
              HasSubstr("train.device = \"cuda\": this process has no cuda device"));
  EXPECT_THAT(error_of("cuda"), HasSubstr("train.device = \"cpu\" does without"));
  EXPECT_THAT(error_of("cuda:1"), HasSubstr("no cuda device"));
  EXPECT_THAT(error_of("gpu"), HasSubstr("'gpu' is no device; write \"auto\", \"cpu\", \"cuda\""));
  EXPECT_EQ(device_refusal("cuda:1"), "");
  EXPECT_NE(device_refusal("meta"), "");
  EXPECT_NE(device_refusal(""), "");
}

}  // namespace
}  // namespace troika
