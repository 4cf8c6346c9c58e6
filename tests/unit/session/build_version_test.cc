#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <troika/base/version.h>
#include <troika/session/build_version.h>

#include <string>

namespace troika {
namespace {

// Ranks compare it in the rendezvous, which names both where they differ.
TEST(BuildVersion, HasThatOfLibTorch) {
  std::string wanted(kVersion);
  wanted.append(" with LibTorch ").append(TORCH_VERSION);
  EXPECT_EQ(build_version(), wanted);
}

}  // namespace
}  // namespace troika
