#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/nn/gradient_product.h>

namespace troika {
namespace {

TEST(GradientProduct, OverwritesThenAdds) {
  const at::Tensor left = at::arange(8, at::kDouble).view({4, 2});
  const at::Tensor right = at::arange(12, at::kDouble).view({4, 3}) - 5;
  const at::Tensor product = left.t().matmul(right);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::ScalarType master = type == at::kDouble ? at::kDouble : at::kFloat;
    ParameterSpec spec;
    spec.name = "w";
    spec.shape = {2, 3};
    Parameter weight(spec, master, at::zeros({2, 3}, master), {}, at::full({2, 3}, NAN, master));
    add_gradient_product(weight, left.to(type), right.to(type));
    EXPECT_TRUE(weight.gradient().to(at::kDouble).equal(product)) << type;  // whole numbers: exact
    add_gradient_product(weight, left.to(type), right.to(type));
    EXPECT_TRUE(weight.gradient().to(at::kDouble).equal(2 * product)) << type;
  }
}

}  // namespace
}  // namespace troika
