// The last layer with its loss against PyTorch's two functions: loss and gradients.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/autocast.h>
#include <troika/nn/cross_entropy_head.h>

#include <string>

namespace troika {
namespace {

using ::testing::HasSubstr;

struct HeadInputs {
  HeadInputs(std::int64_t samples, std::int64_t length, std::int64_t words, at::ScalarType type) {
    torch::manual_seed(3);
    hidden = torch::randn({samples, length, 7}, type).requires_grad_(true);
    weight = torch::randn({words, 7}, type).requires_grad_(true);
    targets = torch::randint(words, {samples, length}, torch::kLong);
  }
  [[nodiscard]] at::Tensor expected(at::Reduction::Reduction reduction) const {
    return at::cross_entropy_loss(torch::linear(hidden, weight).flatten(0, 1), targets.flatten(),
                                  {}, reduction, -100);
  }
  at::Tensor hidden, weight, targets;
};

// Relative to the largest element; of one word all of them are 0.
double distance_of(const at::Tensor& one, const at::Tensor& other) {
  return ((one - other).abs().max() / (other.abs().max() + 1e-9)).item<double>();
}

void expect_gradients(const HeadInputs& in, const at::Tensor& loss, const at::Tensor& expected,
                      double bound) {
  EXPECT_LE(distance_of(loss.to(expected.dtype()), expected), bound);
  const std::vector<at::Tensor> by = {in.hidden, in.weight};
  const auto found = torch::autograd::grad({loss * 3}, by);
  const auto wanted = torch::autograd::grad({expected * 3}, by);
  for (std::size_t i = 0; i < by.size(); ++i) {
    EXPECT_EQ(found[i].sizes(), by[i].sizes());
    EXPECT_EQ(found[i].scalar_type(), by[i].scalar_type());
    EXPECT_LE(distance_of(found[i], wanted[i]), bound) << i;
  }
}

// Also of several chunks, and of a vocabulary that fills no vectors.
TEST(CrossEntropyHead, IsPytorchsLinearAndCrossEntropy) {
  for (const auto& [samples, length, words] :
       {std::tuple{2, 5, 11}, std::tuple{1, 1, 1}, std::tuple{3, 700, 1003}}) {
    HeadInputs in(samples, length, words, torch::kDouble);
    if (length > 1) in.targets[0][1] = -100;
    expect_gradients(in, cross_entropy_head(in.hidden, in.weight, in.targets),
                     in.expected(at::Reduction::Mean), 1e-12);
    expect_gradients(in, cross_entropy_head(in.hidden, in.weight, in.targets, HeadReduction::kSum),
                     in.expected(at::Reduction::Sum), 1e-12);
  }
}

TEST(CrossEntropyHead, TakesTheTypeOfAutocast) {
  const HeadInputs in(2, 300, 505, torch::kFloat);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16, at::kCPU);
    loss = cross_entropy_head(in.hidden, in.weight, in.targets);
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  expect_gradients(in, loss, in.expected(at::Reduction::Mean), 0.02);
}

TEST(CrossEntropyHead, ComputesWhatIsWantedAlone) {
  HeadInputs in(2, 5, 11, torch::kDouble);
  {
    const torch::NoGradGuard no_autograd;
    EXPECT_FALSE(cross_entropy_head(in.hidden, in.weight, in.targets).requires_grad());
  }
  const at::Tensor expected = in.expected(at::Reduction::Mean);
  const at::Tensor weight = in.weight.detach(), hidden = in.hidden.detach();
  const auto by_hidden =
      torch::autograd::grad({cross_entropy_head(in.hidden, weight, in.targets)}, {in.hidden});
  const auto by_weight =
      torch::autograd::grad({cross_entropy_head(hidden, in.weight, in.targets)}, {in.weight});
  const auto wanted = torch::autograd::grad({expected}, {in.hidden, in.weight});
  EXPECT_LE(distance_of(by_hidden[0], wanted[0]), 1e-12);
  EXPECT_LE(distance_of(by_weight[0], wanted[1]), 1e-12);
}

std::string head_error(const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& targets) {
  try {
    (void)cross_entropy_head(hidden, weight, targets);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CrossEntropyHead, NamesWhatDoesNotGoTogether) {
  const HeadInputs in(2, 5, 11, torch::kFloat);
  EXPECT_THAT(head_error(in.hidden, in.weight.t(), in.targets),
              HasSubstr("hidden [2, 5, 7], weight [7, 11] and Long targets [2, 5]"));
  EXPECT_THAT(head_error(in.hidden, in.weight, in.targets.flatten()), HasSubstr("targets [10]"));
  EXPECT_THAT(head_error(in.hidden, in.weight, in.targets + 11),
              HasSubstr("and the weight has 11 rows"));
}

}  // namespace
}  // namespace troika
