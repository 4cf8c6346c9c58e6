// Adam's moving averages of the gradient and its square, and the direction they give; AdamW and
// LAMB share them. Internal to this folder.
#pragma once

#include <ATen/ATen.h>
#include <troika/optim/options.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace troika {

// The constants of one update. The bias corrections are c1 = 1 - beta1^t and c2 = 1 - beta2^t. They
// are part of the constants: (m / c1) / (sqrt(v / c2) + eps) = correction m / (sqrt(v) + eps), with
// correction = sqrt(c2) / c1. eps there is sqrt(c2) times the option.
template <typename T>
struct Moments {
  Moments(const MomentOptions& options, const StepInput& input)
      : scale(static_cast<T>(input.gradient_scale)),
        keep_first(static_cast<T>(options.betas[0])),
        take_first(static_cast<T>(1 - options.betas[0])),
        keep_second(static_cast<T>(options.betas[1])),
        take_second(static_cast<T>(1 - options.betas[1])) {
    const auto t = static_cast<double>(input.step);
    const double root = std::sqrt(1 - std::pow(options.betas[1], t));
    correction = static_cast<T>(root / (1 - std::pow(options.betas[0], t)));
    eps = static_cast<T>(options.eps * root);
  }

  // Adds a gradient to the moments.
  void advance(T gradient, T& first, T& second) const {
    const T g = gradient * scale;
    first = keep_first * first + take_first * g;
    second = keep_second * second + take_second * (g * g);
  }
  // Returns m^ / (sqrt(v^) + eps).
  [[nodiscard]] T direction(T first, T second) const {
    return correction * first / (std::sqrt(second) + eps);
  }

  // Do the same for tensors.
  void advance(const at::Tensor& gradient, const at::Tensor& first,
               const at::Tensor& second) const {
    const at::Tensor g = gradient * scale;
    first.mul_(keep_first).add_(g, take_first);
    second.mul_(keep_second).addcmul_(g, g, take_second);
  }
  [[nodiscard]] at::Tensor direction(const at::Tensor& first, const at::Tensor& second) const {
    return (first * correction).div_(second.sqrt().add_(eps));
  }

  T scale, keep_first, take_first, keep_second, take_second, correction, eps;
};

}  // namespace troika
