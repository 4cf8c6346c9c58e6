// Lion (Chen et al. 2023).
#include <troika/base/vectorize.h>
#include <troika/ops/write_if.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>

namespace troika {
namespace {

struct LionOptions {
  std::array<double, 2> betas = {0.9, 0.99};

  bool operator==(const LionOptions&) const = default;
};

template <typename T>
struct LionCoefficients {
  T rate, shrink, scale, keep_for_sign, keep;
};

// sign(0) is 0, as in the authors' program.
template <typename T>
inline void descend(T* __restrict w, const T* __restrict g, T* __restrict m, std::int64_t count,
                    const LionCoefficients<T> c) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * c.scale;
    const T u = c.keep_for_sign * m[i] + (1 - c.keep_for_sign) * gradient;
    const T sign = static_cast<T>(u > 0) - static_cast<T>(u < 0);
    w[i] = c.shrink * w[i] - c.rate * sign;
    m[i] = c.keep * m[i] + (1 - c.keep) * gradient;
  }
}

template <typename T>
class Lion final : public ArenaOptimizer<T> {
 public:
  Lion(const LionOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, {"exp_avg"}), options_(options) {}

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    if (!this->on_host()) return step_shards(input);
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      const double rate = input.learning_rate * p.lr_factor;
      const LionCoefficients<T> c{static_cast<T>(rate), static_cast<T>(1 - rate * p.weight_decay),
                                  static_cast<T>(input.gradient_scale),
                                  static_cast<T>(options_.betas[0]),
                                  static_cast<T>(options_.betas[1])};
      vectorized([&] { descend(p.master, p.gradient, p.state[0], p.count, c); });
    });
  }

 private:
  void step_shards(const StepInput& input) const {
    const double keep_for_sign = options_.betas[0], keep = options_.betas[1];
    const DeviceScale scale = this->device_scale_of(input);
    this->update_shards([&](const typename ArenaOptimizer<T>::ShardView& p) {
      const double rate = input.learning_rate * p.lr_factor;
      const at::Tensor gradient = p.gradient * scale.factor, &m = p.state[0];
      const at::Tensor u = (m * keep_for_sign).add_(gradient, 1 - keep_for_sign);
      ops::write_if(scale.applies, p.master,
                    (p.master * (1 - rate * p.weight_decay)).sub_(u.sign_(), rate));
      ops::write_if(scale.applies, m, (m * keep).add_(gradient, 1 - keep));
    });
  }

  LionOptions options_;
};

class LionKind final : public RuleKind<LionOptions, Lion> {
 public:
  LionKind()
      : RuleKind("lion",
                 {KeysOf<LionOptions>::pair<&LionOptions::betas>(
                     "betas", ranges::kBelowOne, "decay towards the sign's average, and of it")}) {}
  [[nodiscard]] std::vector<std::string_view> state_names(const Options&) const override {
    return {"exp_avg"};
  }
};

}  // namespace

const OptimizerKind& lion_kind() {
  static const LionKind kKind;
  return kKind;
}

}  // namespace troika
