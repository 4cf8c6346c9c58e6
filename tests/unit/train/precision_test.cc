#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/train/precision.h>

namespace troika {
namespace {

TEST(Precision, ResolvesAutoAndNothingElse) {
  const Precision automatic = resolve_precision(Precision::kAuto);
  EXPECT_TRUE(automatic == Precision::kBFloat16 || automatic == Precision::kFloat32);
  EXPECT_EQ(resolve_precision(Precision::kFloat64), Precision::kFloat64);
}

TEST(Precision, KeepsMastersInFloatAndDoubleInDouble) {
  EXPECT_EQ(numeric_types(Precision::kBFloat16), (NumericTypes{at::kBFloat16, at::kFloat}));
  EXPECT_EQ(numeric_types(Precision::kFloat64), (NumericTypes{at::kDouble, at::kDouble}));
  EXPECT_THROW((void)numeric_types(Precision::kAuto), InternalError);
}

TEST(LossScale, IsAPowerOfTwoNearTheCountOnlyInLowPrecision) {
  EXPECT_EQ(loss_scale_for(Precision::kFloat32, 1000, 1), 1);
  EXPECT_EQ(loss_scale_for(Precision::kBFloat16, 1000, 1), 1.0 / 1024);
  EXPECT_EQ(loss_scale_for(Precision::kFloat16, 1000, 65536), 64);
  EXPECT_EQ(loss_scale_for(Precision::kBFloat16, 0, 1), 1);
}

}  // namespace
}  // namespace troika
