// AdamW (Loshchilov and Hutter 2019).
#include <troika/base/vectorize.h>
#include <troika/ops/adamw.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>
#include <troika/optim/moments.h>

namespace troika {
namespace {

template <typename T>
inline void descend(T* __restrict w, const T* __restrict g, T* __restrict first,
                    T* __restrict second, std::int64_t count, const Moments<T> moments, T rate,
                    T shrink) {
  for (std::int64_t i = 0; i < count; ++i) {
    T m = first[i], v = second[i];
    moments.advance(g[i], m, v);
    first[i] = m;
    second[i] = v;
    w[i] = shrink * w[i] - rate * moments.direction(m, v);
  }
}

template <typename T>
class AdamW final : public ArenaOptimizer<T> {
 public:
  AdamW(const MomentOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, {"exp_avg", "exp_avg_sq"}),
        options_(options) {}

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    if (!this->on_host()) return step_shards(input);
    const Moments<T> moments(options_, input);
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      const double learning_rate = input.learning_rate * p.lr_factor;
      const auto rate = static_cast<T>(learning_rate);
      const auto shrink = static_cast<T>(1 - learning_rate * p.weight_decay);
      vectorized([&] {
        descend(p.master, p.gradient, p.state[0], p.state[1], p.count, moments, rate, shrink);
      });
    });
  }

 private:
  void step_shards(const StepInput& input) const {
    const Moments<double> moments(options_, input);
    const DeviceScale scale = this->device_scale_of(input);
    this->update_shards([&](const typename ArenaOptimizer<T>::ShardView& p) {
      const double rate = input.learning_rate * p.lr_factor;
      ops::adamw_(p.master, p.gradient, p.state[0], p.state[1], scale.factor, scale.applies,
                  {.beta1 = options_.betas[0],
                   .beta2 = options_.betas[1],
                   .correction = moments.correction,
                   .eps = moments.eps,
                   .rate = rate,
                   .shrink = 1 - rate * p.weight_decay});
    });
  }

  MomentOptions options_;
};

class AdamWKind final : public RuleKind<MomentOptions, AdamW> {
 public:
  AdamWKind() : RuleKind("adamw", moment_keys()) {}
  [[nodiscard]] std::vector<std::string_view> state_names(const Options&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
};

}  // namespace

const OptimizerKind& adamw_kind() {
  static const AdamWKind kKind;
  return kKind;
}

}  // namespace troika
