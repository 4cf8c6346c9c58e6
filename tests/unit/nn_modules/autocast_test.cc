#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/autocast.h>

#include <ATen/autocast_mode.h>

#include <stdexcept>
#include <string>

namespace troika {
namespace {

at::ScalarType dtype_of_product() {
  return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

TEST(Autocast, CastsWhileItLivesAndRestoresWhatWas) {
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCPU);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    {
      const Autocast autocast(dtype, at::kCPU);
      EXPECT_EQ(dtype_of_product(), dtype);
    }
    EXPECT_EQ(dtype_of_product(), at::kFloat);
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), before);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
}

TEST(Autocast, Nests) {
  const Autocast outer(at::kBFloat16, at::ones({1}));
  {
    const Autocast inner(at::kHalf, at::kCPU);
    EXPECT_EQ(dtype_of_product(), at::kHalf);
    {
      const Autocast off = Autocast::disabled(at::kCPU);
      EXPECT_EQ(dtype_of_product(), at::kFloat);
    }
    EXPECT_EQ(dtype_of_product(), at::kHalf);
  }
  EXPECT_EQ(dtype_of_product(), at::kBFloat16);
}

TEST(Autocast, RestoresWhatWasWhereAnExceptionLeaves) {
  EXPECT_THROW(
      {
        const Autocast autocast(at::kBFloat16, at::kCPU);
        throw std::runtime_error("half way");
      },
      std::runtime_error);
  EXPECT_EQ(dtype_of_product(), at::kFloat);
}

// LibTorch keeps a copy of each fp32 leaf that it has cast.
TEST(Autocast, DropsCopiesOfParametersAtItsEnd) {
  const at::Tensor x = at::ones({1, 1});
  at::Tensor weight = at::ones({1, 1}).requires_grad_(true);
  for (const float value : {2.0F, 3.0F}) {
    {
      const at::NoGradGuard no_grad;
      weight.fill_(value);
    }
    const Autocast autocast(at::kBFloat16, at::kCPU);
    EXPECT_EQ(at::mm(x, weight).item<float>(), value);
  }
}

TEST(Autocast, DropsCopiesOfAnotherDtype) {
  const at::Tensor x = at::ones({1, 1}), weight = at::ones({1, 1}).requires_grad_(true);
  const Autocast outer(at::kBFloat16, at::kCPU);
  EXPECT_EQ(at::mm(x, weight).scalar_type(), at::kBFloat16);
  {
    const Autocast inner(at::kHalf, at::kCPU);
    EXPECT_EQ(at::mm(x, weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::mm(x, weight).scalar_type(), at::kBFloat16);
}

TEST(Autocast, GivesGradientsInTheDtypeOfParameters) {
  torch::nn::Linear linear(3, 2);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16, at::kCPU);
    const at::Tensor output = linear->forward(at::ones({4, 3}));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    loss = torch::mse_loss(output, at::zeros({4, 2}));
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  for (const auto& parameter : linear->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
}

template <class Make>
std::string error_of(const Make& make) {
  try {
    make();
  } catch (const UsageError& error) {
    EXPECT_FALSE(error.hint().empty());
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Autocast, RefusesWhatLibTorchCannotCast) {
  EXPECT_EQ(error_of([] { const Autocast autocast(at::kDouble, at::kCPU); }),
            "autocast to Double: it casts to 16 bits");
  const std::string meta = "autocast on meta: LibTorch has no casts for this type of device";
  EXPECT_EQ(error_of([] { const Autocast autocast(at::kHalf, at::kMeta); }), meta);
  EXPECT_EQ(error_of([] { const Autocast autocast(at::kHalf, at::ones({1}, at::kMeta)); }), meta);
  EXPECT_EQ(error_of([] { const Autocast off = Autocast::disabled(at::kMeta); }), meta);
  EXPECT_EQ(dtype_of_product(), at::kFloat);
}

}  // namespace
}  // namespace troika
