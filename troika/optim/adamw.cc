#include <troika/base/vectorize.h>
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
    const Moments<T> moments(options_, input);
    if (!this->on_host()) return step_shards(moments, input);
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
  void step_shards(const Moments<T>& moments, const StepInput& input) const {
    this->update_shards([&](const typename ArenaOptimizer<T>::ShardView& p) {
      const double rate = input.learning_rate * p.lr_factor;
      moments.advance(p.gradient, p.state[0], p.state[1]);
      p.master.mul_(1 - rate * p.weight_decay)
          .sub_(moments.direction(p.state[0], p.state[1]), rate);
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
