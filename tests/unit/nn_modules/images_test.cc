// Convolutions of small images as products, and batch-norms with what stands around them, against
// LibTorch's own modules in fp64: results, gradients and running statistics.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/nn/convolution.h>
#include <troika/nn/normalized_images.h>

#include <vector>

namespace troika {
namespace {

at::Tensor drawn(at::IntArrayRef shape, double phase) {
  const std::int64_t count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 1.7 + phase).view(shape);
}

at::Tensor images(at::IntArrayRef shape, double phase) {
  return drawn(shape, phase).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
}

void expect_near(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_TRUE(found.defined());
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE((found - expected).abs().max().item<double>(),
            1e-13 * expected.abs().max().item<double>());
}

void expect_same_gradients(const at::Tensor& found, const at::Tensor& expected,
                           const std::vector<at::Tensor>& inputs) {
  expect_near(found, expected);
  const at::Tensor gradient = drawn(found.sizes(), 0.3);
  const auto own = torch::autograd::grad({found}, inputs, {gradient});
  const auto theirs = torch::autograd::grad({expected}, inputs, {gradient});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(own[i], theirs[i]);
  }
}

std::string name_of(const at::Tensor& tensor) {
  return tensor.grad_fn()->name();
}

struct Convolution {
  std::int64_t in, out, height, width, kernel, stride, padding;
  bool is_product;
};

TEST(Convolve, HasTheNumbersOfLibTorch) {
  for (const Convolution& c : std::vector<Convolution>{{5, 7, 4, 4, 3, 1, 1, true},
                                                       {5, 7, 8, 8, 3, 2, 1, true},
                                                       {5, 7, 7, 3, 3, 2, 1, true},
                                                       {5, 7, 8, 7, 1, 2, 0, true},
                                                       {5, 7, 2, 8, 1, 1, 0, true},
                                                       {5, 7, 6, 6, 3, 1, 0, true},
                                                       {5, 7, 1, 1, 3, 1, 1, true},
                                                       {3, 4, 9, 9, 7, 3, 3, true},
                                                       {5, 7, 5, 4, 3, 1, 1, false}}) {
    SCOPED_TRACE(testing::Message() << c.height << " x " << c.width << ", " << c.kernel << ", "
                                    << c.stride << ", " << c.padding);
    const at::Tensor input = images({3, c.in, c.height, c.width}, 0);
    const at::Tensor weight = drawn({c.out, c.in, c.kernel, c.kernel}, 1).requires_grad_(true);
    const at::Tensor found = convolve(input, weight, c.stride, c.padding);
    EXPECT_EQ(name_of(found).find("ConvolutionBackward") == std::string::npos, c.is_product);
    expect_same_gradients(found, at::conv2d(input, weight, {}, c.stride, c.padding),
                          {input, weight});
  }
}

TEST(Convolve, DifferentiatesWhatIsAskedFor) {
  const at::Tensor input = images({2, 3, 4, 4}, 0);
  const at::Tensor weight = drawn({4, 3, 3, 3}, 1);
  expect_same_gradients(convolve(input, weight, 1, 1), at::conv2d(input, weight, {}, 1, 1),
                        {input});
  const at::Tensor trained = weight.clone().requires_grad_(true), fixed = input.detach();
  expect_same_gradients(convolve(fixed, trained, 1, 1), at::conv2d(fixed, trained, {}, 1, 1),
                        {trained});
}

TEST(Convolve, LeavesOtherOrdersOfMemoryToLibTorch) {
  const at::Tensor input = drawn({2, 3, 4, 4}, 0), weight = drawn({4, 3, 3, 3}, 1);
  EXPECT_TRUE(convolve(input, weight, 1, 1).equal(at::conv2d(input, weight, {}, 1, 1)));
  const at::Tensor none = images({0, 3, 4, 4}, 0);
  EXPECT_EQ(convolve(none, weight, 1, 1).sizes(), at::IntArrayRef({0, 4, 4, 4}));
}

torch::nn::BatchNorm2d norm_of(std::int64_t channels) {
  torch::nn::BatchNorm2d norm(torch::nn::BatchNormOptions(channels).eps(1e-3).momentum(0.3));
  norm->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(drawn({channels}, 2));
  norm->bias.copy_(drawn({channels}, 3));
  return norm;
}

TEST(Normalized, HasTheNumbersOfLibTorch) {
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{3, 5, 7, 4}, {2, 4, 1, 1}, {1, 1, 9, 9}}) {
    for (const ops::Relu relu : {ops::Relu::kAbsent, ops::Relu::kApplied}) {
      for (const bool adds : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape << (adds ? " with a shortcut" : ""));
        auto own = norm_of(shape[1]), other = norm_of(shape[1]);
        const at::Tensor input = images(shape, 0), shortcut = images(shape, 1);
        const at::Tensor weight = own->weight, bias = own->bias;
        other->weight = weight;
        other->bias = bias;
        const at::Tensor added = adds ? shortcut : at::Tensor();
        std::vector<at::Tensor> inputs{input, weight, bias};
        if (adds) inputs.push_back(shortcut);
        const at::Tensor found = normalized(*own, input, added, relu);
        EXPECT_NE(name_of(found).find("Normalized"), std::string::npos);
        expect_same_gradients(found, with_shortcut(other->forward(input), added, relu), inputs);
        for (std::size_t i = 0; i < own->buffers().size(); ++i) {
          expect_near(own->buffers()[i].to(at::kDouble), other->buffers()[i].to(at::kDouble));
        }
      }
    }
  }
}

TEST(Normalized, IsTheModuleInEvaluationsAndElsewhere) {
  auto norm = norm_of(3);
  const at::Tensor input = drawn({2, 3, 4, 5}, 0);
  const at::Tensor before = norm->running_mean.clone();
  const at::Tensor contiguous = normalized(*norm, input, {}, ops::Relu::kApplied);
  EXPECT_EQ(name_of(contiguous).find("Normalized"), std::string::npos);
  EXPECT_FALSE(norm->running_mean.equal(before));
  norm->eval();
  const at::Tensor last = input.contiguous(at::MemoryFormat::ChannelsLast);
  expect_near(normalized(*norm, last, {}, ops::Relu::kApplied), norm->forward(last).relu());
  norm->train();
  EXPECT_THROW(normalized(*norm, images({1, 3, 1, 1}, 0), {}, ops::Relu::kAbsent), c10::Error)
      << "one value has no variance";
}

}  // namespace
}  // namespace troika
