#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <troika/base/version.h>
#include <troika/session/build_version.h>

namespace troika {
namespace {

// Ranks compare it in the rendezvous, which names both where they differ.
TEST(BuildVersion, HasThatOfLibTorch) {
  EXPECT_EQ(build_version(), std::string(kVersion) + " with LibTorch " TORCH_VERSION);
}

}  // namespace
}  // namespace troika
