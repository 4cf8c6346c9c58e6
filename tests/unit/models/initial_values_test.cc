#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/models/initial_values.h>

namespace troika {
namespace {

std::string refusal(const std::string& match, const std::string& to) {
  InitialValueOptions options;
  options.path = "model.safetensors";
  options.rename = {{match, to}};
  try {
    check_initial_values(options, Origins());
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(InitialValues, MapPrefixesToPrefixesAndNamesToNames) {
  EXPECT_EQ(refusal("encoder.*", "*"), "");
  EXPECT_EQ(refusal("head.weight", "fc.weight"), "");
  for (const auto& [match, to] : {std::pair{"encoder.*", "fc"}, std::pair{"fc", "encoder.*"},
                                  std::pair{"a*b*", "*"}, std::pair{"*.bias", "*.b"}}) {
    EXPECT_THAT(refusal(match, to), testing::HasSubstr("a * stands at the end of both")) << match;
  }
}

}  // namespace
}  // namespace troika
