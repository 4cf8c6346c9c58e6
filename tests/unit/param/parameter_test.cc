#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/param/parameter.h>

#include <limits>

namespace troika {
namespace {

// A parameter [2, 3] whose gradient slot holds what no step may ever read.
Parameter parameter(at::ScalarType type = at::kFloat) {
  ParameterSpec spec;
  spec.name = "w";
  spec.shape = {2, 3};
  const at::Tensor master = at::zeros({2, 3}, type);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {spec, type, master, master, at::full({2, 3}, nan, type)};
}

TEST(Parameter, TheFirstContributionOverwritesAndLaterOnesAdd) {
  Parameter w = parameter();
  EXPECT_FALSE(w.claimed());
  w.add_gradient(at::full({2, 3}, 2.0));
  EXPECT_TRUE(w.claimed());
  w.add_gradient(at::full({2, 3}, 3.0));
  EXPECT_TRUE(w.gradient().equal(at::full({2, 3}, 5.0)));

  w.release_gradient();
  EXPECT_FALSE(w.claimed());
  w.add_gradient(at::full({2, 3}, 7.0));
  EXPECT_TRUE(w.gradient().equal(at::full({2, 3}, 7.0)));
}

TEST(Parameter, ClaimingZeroesOnceOnly) {
  Parameter w = parameter();
  w.claim_zeroed();
  EXPECT_TRUE(w.gradient().equal(at::zeros({2, 3})));
  w.add_gradient(at::ones({2, 3}));
  w.claim_zeroed();
  EXPECT_TRUE(w.gradient().equal(at::ones({2, 3})));
}

TEST(Parameter, AccumulatesInThePrecisionOfTheMaster) {
  Parameter w = parameter();
  w.add_gradient(at::full({2, 3}, 256.0, at::kBFloat16));
  w.add_gradient(at::full({2, 3}, 1.0, at::kBFloat16));  // 257 is not a bf16
  EXPECT_TRUE(w.gradient().equal(at::full({2, 3}, 257.0)));
}

TEST(Parameter, IsClaimedOnce) {
  Parameter w = parameter();
  EXPECT_FALSE(w.claim());
  EXPECT_TRUE(w.claim());
  w.release_gradient();
  EXPECT_FALSE(w.claim());
}

TEST(Parameter, RefusesAnotherShape) {
  Parameter w = parameter();
  EXPECT_THROW(w.add_gradient(at::ones({3})), InternalError);  // which would broadcast
  EXPECT_THROW(w.add_gradient(at::ones({})), InternalError);
  EXPECT_FALSE(w.claimed());
}

}  // namespace
}  // namespace troika
