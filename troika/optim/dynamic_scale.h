// The rule by which a loss scale follows what it meets: Micikevicius et al. 2018, "Mixed precision
// training", section 3.2, with the factors and the counting of torch.amp.GradScaler. LossScaler is
// the rule of recipes, with powers of two alone.
#pragma once

#include <cstdint>

namespace troika {

struct DynamicScaleOptions {
  double initial_scale = 65536;  // 2^16
  // The scale is multiplied by `growth_factor` after `growth_interval` finite steps in a row, and
  // by `backoff_factor` after a step that is not finite. With powers of two scaling is exact.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  // The scale below which steps that are not finite are an error. torch.amp goes on.
  double minimum_scale = 1.0 / 65536;
  // False: nothing is scaled, so that one loop serves fp16 and other precisions.
  bool enabled = true;
};

class DynamicScale {
 public:
  // All there is to remember.
  struct State {
    double scale = DynamicScaleOptions{}.initial_scale;
    std::int64_t good_steps = 0;  // finite ones in a row since the scale has changed
    friend bool operator==(const State&, const State&) = default;
  };

  // Throws UsageError naming the option that makes no sense.
  explicit DynamicScale(const DynamicScaleOptions& options);

  [[nodiscard]] bool enabled() const { return options_.enabled; }
  // Returns the scale; 1 if it is not enabled.
  [[nodiscard]] double scale() const { return enabled() ? state_.scale : 1; }
  [[nodiscard]] const State& state() const { return state_; }
  // Goes on from a saved state. Throws DataError unless the scale is a positive number of fp32 and
  // the count is not negative.
  void load(const State& state);

  // Counts a step of finite gradients. The scale grows when its turn has come, but never past the
  // range of fp32.
  void count_finite_step();
  // Lowers the scale after a step of gradients that are not finite. Throws NonFiniteError where
  // that would pass the minimum.
  void back_off();

 private:
  DynamicScaleOptions options_;
  State state_;
};

}  // namespace troika
