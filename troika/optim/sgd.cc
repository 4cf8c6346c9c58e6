// SGD with momentum, Nesterov's included.
#include <troika/base/vectorize.h>
#include <troika/ops/write_if.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>

namespace troika {
namespace {

template <typename T>
struct SgdCoefficients {
  T rate, scale, momentum;
};

template <typename T>
inline void descend(T* __restrict w, const T* __restrict g, std::int64_t count, T decay,
                    const SgdCoefficients<T>& c) {
  for (std::int64_t i = 0; i < count; ++i) w[i] -= c.rate * (g[i] * c.scale + decay * w[i]);
}

// `kAhead`: Nesterov's momentum.
template <bool kAhead, typename T>
inline void descend(T* __restrict w, const T* __restrict g, T* __restrict b, std::int64_t count,
                    T decay, const SgdCoefficients<T>& c) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T d = g[i] * c.scale + decay * w[i];
    const T velocity = c.momentum * b[i] + d;
    b[i] = velocity;
    w[i] -= c.rate * (kAhead ? d + c.momentum * velocity : velocity);
  }
}

std::vector<std::string_view> state_of(const MomentumOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum"};
}

template <typename T>
class Sgd final : public ArenaOptimizer<T> {
 public:
  Sgd(const MomentumOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, state_of(options)),
        options_(options) {}

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    if (!this->on_host()) return step_shards(input);
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      const SgdCoefficients<T> c{static_cast<T>(input.learning_rate * p.lr_factor),
                                 static_cast<T>(input.gradient_scale),
                                 static_cast<T>(options_.momentum)};
      const auto decay = static_cast<T>(p.weight_decay);
      T* const velocity = p.state[0];
      if (velocity == nullptr) {
        vectorized([&] { descend(p.master, p.gradient, p.count, decay, c); });
      } else if (options_.nesterov) {
        vectorized([&] { descend<true>(p.master, p.gradient, velocity, p.count, decay, c); });
      } else {
        vectorized([&] { descend<false>(p.master, p.gradient, velocity, p.count, decay, c); });
      }
    });
  }

 private:
  void step_shards(const StepInput& input) const {
    const DeviceScale scale = this->device_scale_of(input);
    this->update_shards([&](const typename ArenaOptimizer<T>::ShardView& p) {
      const at::Tensor d = (p.gradient * scale.factor).add_(p.master, p.weight_decay);
      const at::Tensor& velocity = p.state[0];
      if (velocity.defined()) {
        ops::write_if(scale.applies, velocity, (velocity * options_.momentum).add_(d));
      }
      if (velocity.defined() && options_.nesterov) d.add_(velocity, options_.momentum);
      const at::Tensor& direction = velocity.defined() && !options_.nesterov ? velocity : d;
      ops::write_if(scale.applies, p.master,
                    p.master.sub(direction, input.learning_rate * p.lr_factor));
    });
  }

  MomentumOptions options_;
};

class SgdKind final : public RuleKind<MomentumOptions, Sgd> {
 public:
  SgdKind() : RuleKind("sgd", momentum_keys()) {}
  [[nodiscard]] std::vector<std::string_view> state_names(const Options& options) const override {
    return state_of(options.as<MomentumOptions>());
  }
  void check(const Options& options, const Origins& origins) const override {
    check_momentum(options.as<MomentumOptions>(), origins);
  }
};

}  // namespace

const OptimizerKind& sgd_kind() {
  static const SgdKind kKind;
  return kKind;
}

}  // namespace troika
