#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/device/choose.h>
#include <troika/device/plugin_loader.h>

namespace troika {
namespace {

using ::testing::HasSubstr;

// What is said of a word on a machine without accelerators.
std::string error_of(const std::string& word, HostPosition place = {}) {
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
  EXPECT_THAT(error_of("tpu"), HasSubstr("'tpu' is no device; "));
  EXPECT_EQ(device_refusal("cuda:1"), "");
  EXPECT_NE(device_refusal("meta"), "");
  EXPECT_NE(device_refusal(""), "");
}

TEST(ChooseDevice, SuggestsTheWordThatWasMeant) {
  EXPECT_EQ(device_refusal("gpu"), "'gpu' is no device; did you mean 'cuda'?");
  EXPECT_EQ(device_refusal("GPU:1"), "'GPU:1' is no device; did you mean 'cuda:1'?");
  EXPECT_EQ(device_refusal("CUDA"), "'CUDA' is no device; did you mean 'cuda'?");
  EXPECT_EQ(device_refusal("cdua:0"), "'cdua:0' is no device; did you mean 'cuda:0'?");
  EXPECT_EQ(device_refusal("Auto"), "'Auto' is no device; did you mean 'auto'?");
  EXPECT_EQ(device_refusal("cuda:x"),
            "'cuda:x' is no device; write \"auto\", \"cpu\", \"cuda\" or \"cuda:1\"");
  EXPECT_EQ(device_refusal("cpu:3"), "'cpu:3' is no device: the host is one; write \"cpu\"");
}

TEST(ChooseDevice, GivesADeviceToEachRankWhereThereAreSome) {
  EXPECT_EQ(ranks_with_a_device("cpu"), 0);
  EXPECT_EQ(ranks_with_a_device("cuda:0"), 1);
  EXPECT_EQ(ranks_with_a_device("xpu:1"), 1);
  EXPECT_EQ(ranks_with_a_device("xpu"), 0);
  EXPECT_EQ(ranks_with_a_device("auto"), device_count(at::kCUDA));
}

TEST(ChooseDevice, SaysWhyAutoTakesTheCpu) {
  const DevicePlugin two{.type = "cuda", .devices = 2};
  EXPECT_EQ(detail::reason_for_cpu({0, 2}, two, 2), "");
  EXPECT_EQ(detail::reason_for_cpu({3, 4, true}, two, 2), "");
  EXPECT_EQ(detail::reason_for_cpu({0, 3}, two, 2),
            "device = \"auto\" takes the CPU: 3 ranks on this host, and 2 GPUs; start 2 ranks a "
            "host, or name one GPU for all");
  const DevicePlugin refused{.type = "cuda", .reason = "there is no plug-in", .hint = "build it"};
  EXPECT_EQ(detail::reason_for_cpu({0, 1}, refused, 1),
            "device = \"auto\" takes the CPU: there is no plug-in; build it");
  EXPECT_EQ(detail::reason_for_cpu({0, 1}, refused, 0), "");
  EXPECT_EQ(reason_for_cpu("cuda", {0, 3}), "");
}

}  // namespace
}  // namespace troika
