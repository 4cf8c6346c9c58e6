// Lets a script drive our GradScaler:
//   grad_scaler_tool INITIAL_SCALE GROWTH_FACTOR BACKOFF_FACTOR GROWTH_INTERVAL STEP ...
// A STEP is the gradients of two losses, "A,B". Each has a parameter and an optimiser: SGD with
// momentum, whose gradient is clipped, and Adam. "save" saves the scaler, and goes on with a new
// one that has loaded it. Prints a line of JSON a step.
#include <torch/torch.h>
#include <troika/parallel/data_parallel/grad_scaler.h>

#include <exception>
#include <iomanip>
#include <iostream>
#include <limits>
#include <span>
#include <sstream>
#include <string>

#include "support/tool_main.h"

namespace troika {
namespace {

constexpr double kLearningRate = 0.1, kLargestNorm = 2;

torch::Tensor zero_parameter() {
  return torch::zeros({3}).requires_grad_(true);
}

// Sums of a parameter, of which the gradient is `value` times 1, 2 and 3.
torch::Tensor loss_of(const torch::Tensor& parameter, float value) {
  return (parameter * torch::tensor({1.0F, 2.0F, 3.0F}) * value).sum();
}

class Loop {
 public:
  explicit Loop(const GradScalerOptions& options)
      : options_(options), scaler_(Session::on(Group()), options) {}

  void save_and_load() {
    std::stringstream file;
    torch::save(scaler_, file);
    scaler_ = GradScaler(Session::on(Group()), options_);
    torch::load(scaler_, file);
  }

  void step(float a, float b) {
    sgd_.zero_grad();
    adam_.zero_grad();
    scaler_.scale(loss_of(clipped_, a)).backward();
    scaler_.scale(loss_of(free_, b)).backward();
    scaler_.unscale_(sgd_);
    torch::nn::utils::clip_grad_norm_(clipped_, kLargestNorm);
    const bool of_sgd = scaler_.step(sgd_), of_adam = scaler_.step(adam_);
    scaler_.update();
    std::cout << R"({"scale": )" << scaler_.scale_value() << R"(, "good_steps": )"
              << scaler_.state().good_steps << R"(, "stepped": [)" << of_sgd << ", " << of_adam
              << R"(], "parameters": [)";
    const torch::Tensor all = torch::cat({clipped_, free_}).detach();
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      std::cout << (i > 0 ? ", " : "") << all[i].item<double>();
    }
    std::cout << "]}\n";
  }

 private:
  GradScalerOptions options_;
  GradScaler scaler_;
  torch::Tensor clipped_ = zero_parameter(), free_ = zero_parameter();
  torch::optim::SGD sgd_{{clipped_}, torch::optim::SGDOptions(kLearningRate).momentum(0.9)};
  torch::optim::Adam adam_{{free_}, torch::optim::AdamOptions(kLearningRate)};
};

int run(std::span<char*> arguments) {
  if (arguments.size() < 6) return 2;
  std::cout << std::setprecision(std::numeric_limits<double>::max_digits10);
  Loop loop({.initial_scale = std::stod(arguments[1]),
             .growth_factor = std::stod(arguments[2]),
             .backoff_factor = std::stod(arguments[3]),
             .growth_interval = std::stoll(arguments[4]),
             .minimum_scale = 0});
  for (const std::string step : arguments.subspan(5)) {
    if (step == "save") {
      loop.save_and_load();
      continue;
    }
    const std::size_t comma = step.find(',');
    loop.step(std::stof(step.substr(0, comma)), std::stof(step.substr(comma + 1)));
  }
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  return troika::test::tool_main(argc, argv, troika::run);
}
