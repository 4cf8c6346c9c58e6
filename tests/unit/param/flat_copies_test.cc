#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/param/flat_copies.h>

#include <vector>

namespace troika {
namespace {

std::vector<at::Tensor> mixed_tensors() {
  return {at::arange(6, at::kFloat).view({2, 3}),
          at::arange(4, at::kDouble),
          at::empty({0}, at::kFloat),
          at::full({}, 7, at::kFloat),
          at::arange(6, at::kFloat).view({2, 3}).t(),
          at::empty({0}, at::kLong)};
}

TEST(FlatCopies, LieEndToEndByType) {
  const std::vector<at::Tensor> tensors = mixed_tensors();
  const FlatCopies copies(tensors);
  ASSERT_EQ(copies.flats().size(), 2u);  // no long has an element
  const at::Tensor& floats = copies.flats()[0];
  EXPECT_TRUE(floats.equal(at::tensor({0, 1, 2, 3, 4, 5, 7, 0, 3, 1, 4, 2, 5}).to(at::kFloat)));
  EXPECT_TRUE(copies.flats()[1].equal(tensors[1]));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(copies.copies()[i].equal(tensors[i])) << i;
    EXPECT_EQ(copies.copies()[i].scalar_type(), tensors[i].scalar_type());
  }
}

TEST(FlatCopies, AreViewsOfTheFlatsAndNotOfTheTensors) {
  const std::vector<at::Tensor> tensors = mixed_tensors();
  const FlatCopies copies(tensors);
  for (const at::Tensor& flat : copies.flats()) flat.add_(10);
  EXPECT_TRUE(tensors[0].equal(mixed_tensors()[0]));
  EXPECT_TRUE(copies.copies()[0].equal(tensors[0] + 10));
  EXPECT_EQ(copies.copies()[3].item<float>(), 17);
}

TEST(FlatCopies, GoBackWhereTheyCameFrom) {
  const std::vector<at::Tensor> tensors = mixed_tensors(), before = mixed_tensors();
  const FlatCopies copies(tensors);
  for (const at::Tensor& flat : copies.flats()) flat.mul_(2);
  copies.write_to(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].equal(before[i] * 2)) << i;
  }
}

TEST(FlatCopies, OfNothing) {
  const FlatCopies copies({});
  EXPECT_TRUE(copies.flats().empty());
  EXPECT_TRUE(copies.copies().empty());
}

TEST(FlatCopies, OfParametersTakeNoGradient) {
  const std::vector<at::Tensor> tensors = {at::ones({3}).requires_grad_()};
  const FlatCopies copies(tensors);
  EXPECT_FALSE(copies.copies()[0].requires_grad());
  copies.flats()[0].zero_();
  copies.write_to(tensors);
  EXPECT_EQ(tensors[0].detach().sum().item<float>(), 0);
}

}  // namespace
}  // namespace troika
