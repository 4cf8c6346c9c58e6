#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>
#include <troika/train/precision.h>

namespace troika {
namespace {

TEST(Precision, ResolvesAutoAndNothingElse) {
  const MachineFacts machine = machine_facts();
  EXPECT_EQ(resolve_precision(Precision::kAuto, at::kCPU),
            machine.amx_bf16 || machine.avx512_bf16 ? Precision::kBFloat16 : Precision::kFloat32);
  EXPECT_EQ(resolve_precision(Precision::kFloat64, at::kCPU), Precision::kFloat64);
}

TEST(Precision, OfADeviceThatIsElsewhereIsBf16) {
  TrainOptions train;
  train.device = "xpu";
  EXPECT_EQ(resolve_precision(train, {}), Precision::kBFloat16);
  train.precision = Precision::kFloat32;
  EXPECT_EQ(resolve_precision(train, {}), Precision::kFloat32);
  train = {};
  train.device = "cpu";
  EXPECT_EQ(resolve_precision(train, {}), resolve_precision(Precision::kAuto, at::kCPU));
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
