#include <troika/base/error.h>
#include <troika/optim/dynamic_scale.h>

#include <cmath>
#include <sstream>
#include <string>

namespace troika {
namespace {

// Scales are numbers of fp32, as those that gradients are multiplied by.
double rounded(double scale) {
  return static_cast<double>(static_cast<float>(scale));
}

bool is_scale(double value) {
  return value > 0 && std::isfinite(rounded(value)) && rounded(value) > 0;
}

std::string text_of(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void require(bool holds, const std::string& option, double value, const std::string& hint) {
  if (!holds) throw UsageError("gradient scaler: " + option + " = " + text_of(value), hint);
}

}  // namespace

DynamicScale::DynamicScale(const DynamicScaleOptions& options) : options_(options) {
  require(is_scale(options.initial_scale), "initial_scale", options.initial_scale,
          "take a number above 0 in the range of fp32, such as 65536");
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor",
          options.growth_factor, "take a number above 1, such as 2");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
          options.backoff_factor, "take a number between 0 and 1, such as 0.5");
  require(options.growth_interval >= 1, "growth_interval",
          static_cast<double>(options.growth_interval), "take a number of steps from 1, as 2000");
  require(options.minimum_scale >= 0 && options.minimum_scale <= options.initial_scale,
          "minimum_scale", options.minimum_scale, "take a number from 0 to initial_scale");
  state_ = {.scale = rounded(options.initial_scale), .good_steps = 0};
}

void DynamicScale::load(const State& state) {
  if (!is_scale(state.scale) || state.good_steps < 0) {
    throw DataError("gradient scaler: a saved scale of " + text_of(state.scale) + " after " +
                        std::to_string(state.good_steps) + " good steps is not possible",
                    "the file it comes from is damaged, or of something else");
  }
  state_ = {.scale = rounded(state.scale), .good_steps = state.good_steps};
}

void DynamicScale::count_finite_step() {
  if (++state_.good_steps < options_.growth_interval) return;
  const double grown = rounded(state_.scale * options_.growth_factor);
  if (std::isfinite(grown)) state_.scale = grown;
  state_.good_steps = 0;
}

void DynamicScale::back_off() {
  const double lowered = rounded(state_.scale * options_.backoff_factor);
  if (lowered < options_.minimum_scale || lowered == 0) {
    throw NonFiniteError(
        "gradients are not finite even at a loss scale of " + text_of(state_.scale),
        "look for a loss that is not finite without a scale, or lower the learning rate");
  }
  state_ = {.scale = lowered, .good_steps = 0};
}

}  // namespace troika
