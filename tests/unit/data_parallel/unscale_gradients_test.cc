#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/unscale_gradients.h>

#include <ATen/ATen.h>

#include <limits>
#include <vector>

namespace troika::detail {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<at::Tensor> gradients_with(float special) {
  return {at::full({2, 3}, 6.0), at::tensor({special, 2.0F}), at::zeros({0}),
          at::ones({4, 6}, at::kDouble).slice(1, 0, 6, 2), at::full({3}, 4.0, at::kBFloat16)};
}

TEST(UnscaleGradients, DividesAndFindsWhatIsNotFinite) {
  for (const float special : {1.0F, 3e38F, 0.0F, kInfinity, -kInfinity, kNan}) {
    auto gradients = gradients_with(special);
    const at::Tensor found = unscale_gradients(gradients, 2);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_EQ(found.item<float>(), std::isfinite(special) ? 0 : 1) << special;
    EXPECT_TRUE(at::equal(gradients[0], at::full({2, 3}, 3.0)));
    EXPECT_EQ(gradients[1][1].item<float>(), 1);
    EXPECT_TRUE(at::equal(gradients[3], at::full({4, 3}, 0.5, at::kDouble)));
    EXPECT_TRUE(at::equal(gradients[4], at::full({3}, 2.0, at::kBFloat16)));
  }
}

TEST(UnscaleGradients, OfNoneFindNothing) {
  EXPECT_EQ(unscale_gradients({}, 2).item<float>(), 0);
}

// What other devices run, against LibTorch's kernel.
TEST(UnscaleGradients, OneByOneGiveTheSameBits) {
  auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor values = at::randn({1000}, generator) * 1e5;
  for (const double scale : {65536.0, 3.0, 1.0 / 1024}) {
    for (const float special : {1.0F, kInfinity, kNan}) {
      const std::vector<at::Tensor> one = {values.clone(), at::full({1}, special)};
      const std::vector<at::Tensor> other = {values.clone(), at::full({1}, special)};
      const at::Tensor found = unscale_gradients(one, scale);
      EXPECT_TRUE(at::equal(found, unscale_one_by_one(other, scale)));
      EXPECT_TRUE(at::equal(one[0], other[0])) << scale;
    }
  }
}

}  // namespace
}  // namespace troika::detail
