// What the tests of DataParallel share: small modules, batches, and the comparison with a single
// process that has all of the data.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/session/session.h>

#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {

inline torch::Tensor squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

inline Session session_of(const Rank& rank) {
  return Session::on(rank.group(), Seconds(30));
}

inline torch::Tensor doubles(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, torch::kDouble);
}

// Returns the parameters of a module, end to end.
inline torch::Tensor parameters_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& each : module.parameters()) parts.push_back(each.detach().flatten());
  return torch::cat(parts);
}

// Returns the largest difference of two elements.
inline double distance(const torch::Tensor& one, const torch::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

// Linear layers with tanh between them.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::uint64_t seed = 1) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 5));
    third = register_module("third", torch::nn::Linear(5, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Mlp);

// `count` samples, always the same for a step.
struct Samples {
  torch::Tensor x, y;
  explicit Samples(std::int64_t count, std::uint64_t step = 0, at::IntArrayRef shape = {6},
                   std::int64_t outputs = 3) {
    std::vector<std::int64_t> sizes = {count};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    x = doubles(sizes, 100 + step);
    y = doubles({count, outputs}, 200 + step);
  }
  Samples(torch::Tensor the_x, torch::Tensor the_y) : x(std::move(the_x)), y(std::move(the_y)) {}
  [[nodiscard]] Samples slice(std::int64_t begin, std::int64_t count) const {
    return {x.narrow(0, begin, count), y.narrow(0, begin, count)};
  }
  // This rank's of equal slices.
  [[nodiscard]] Samples slice(const Rank& rank) const {
    const std::int64_t count = x.size(0) / rank.size();
    return slice(rank.index() * count, count);
  }
};

inline double largest(const torch::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

// The bound between layouts in fp64: 1e-12 of the largest gradient of the parameter, and 1e-14 of
// the largest of the model.
inline void expect_same_gradients(const torch::nn::Module& actual,
                                  const torch::nn::Module& expected) {
  const auto theirs = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    const torch::Tensor gradient = item.value().grad(), wanted = theirs[item.key()].grad();
    ASSERT_EQ(gradient.defined(), wanted.defined()) << item.key();
    if (!wanted.defined()) continue;
    EXPECT_LE(largest(gradient - wanted), 1e-12 * largest(wanted) + 1e-14) << item.key();
  }
}

inline void expect_same_values(const torch::nn::Module& actual, const torch::nn::Module& expected,
                               double tolerance = 1e-12) {
  const auto theirs = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    EXPECT_LE(largest(item.value() - theirs[item.key()]), tolerance) << item.key();
  }
  const auto buffers = expected.named_buffers();
  for (const auto& item : actual.named_buffers()) {
    EXPECT_LE(largest(item.value().to(torch::kDouble) - buffers[item.key()].to(torch::kDouble)),
              tolerance)
        << item.key();
  }
}

// A backward pass of the whole batch on every rank, so that a process alone has the same gradients.
template <class Model>
void backward(Model& model, const Samples& batch = Samples(6)) {
  squared_error(model.forward(batch.x), batch.y).backward();
}

template <class Model>
void expect_alike_in_two_steps(Model& model, torch::nn::Module& module, MlpImpl& alone) {
  for (int step = 0; step < 2; ++step) {
    module.zero_grad();
    alone.zero_grad();
    backward(model);
    backward(alone);
    expect_same_gradients(module, alone);
  }
}

// Returns the UsageError that `body` throws; any other outcome fails the test.
template <class Body>
UsageError thrown_by(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const UsageError& error) {
    return error;
  }
  ADD_FAILURE() << "no UsageError";
  return UsageError("");
}

template <class Body>
std::string usage_error_of(Body&& body) {
  return thrown_by(std::forward<Body>(body)).what();
}

template <class Body>
std::string usage_hint_of(Body&& body) {
  return thrown_by(std::forward<Body>(body)).hint();
}

// A convolution, a norm of either kind, and what comes after it.
template <class Norm>
struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(Norm the_norm) {
    torch::manual_seed(1);
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    norm = register_module("norm", std::move(the_norm));
    fc = register_module("fc", torch::nn::Linear(4, 3));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(doubles({4}, 5));
    norm->bias.copy_(doubles({4}, 6));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::tanh(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

// Small buckets, so that even small modules have several.
inline DataParallelOptions small_buckets() {
  DataParallelOptions options;
  options.buckets = {.first_bytes = 64, .bytes = 400};
  return options;
}

}  // namespace troika::test
