// The outer optimiser of a parameter server, whose workers push changes after local steps (delayed
// Nesterov, Liu et al. 2024).
#include <troika/base/vectorize.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>

namespace troika {
namespace {

std::vector<std::string_view> state_of(const OuterOptions& options) {
  if (options.momentum == 0) return {};
  if (!options.waits_for_round) return {"outer_momentum"};
  return {"outer_momentum", "outer_sum"};
}

// Of all pushes but the last of a round: w -= rate g, s += g, with g the push's part of the mean.
template <typename T>
inline void go_on(T* __restrict w, const T* __restrict g, T* __restrict s, std::int64_t count,
                  T rate, T scale) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T d = g[i] * scale;
    w[i] -= rate * d;
    s[i] += d;
  }
}

// Of the last one: with the mean of all in the momentum, which is applied then.
template <typename T>
inline void end_round(T* __restrict w, const T* __restrict g, T* __restrict b, T* __restrict s,
                      std::int64_t count, T rate, T scale, T momentum) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T d = g[i] * scale;
    const T velocity = momentum * b[i] + s[i] + d;
    b[i] = velocity;
    s[i] = 0;
    w[i] -= rate * (d + momentum * velocity);
  }
}

template <typename T>
inline void descend(T* __restrict w, const T* __restrict g, T* __restrict b, std::int64_t count,
                    T rate, T scale, T momentum) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T d = g[i] * scale;
    const T velocity = momentum * b[i] + d;
    b[i] = velocity;
    w[i] -= rate * (d + momentum * velocity);
  }
}

template <typename T>
class Outer final : public ArenaOptimizer<T> {
 public:
  Outer(const OuterOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, state_of(options)),
        options_(options) {
    check(this->on_host(), "an outer step on a device");
  }

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    const auto rate = static_cast<T>(input.learning_rate);
    const auto scale = static_cast<T>(input.gradient_scale * input.round.share);
    const auto momentum = static_cast<T>(options_.momentum);
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      T* const velocity = p.state[0];
      T* const sum = p.state[1];
      vectorized([&] {
        if (velocity == nullptr) {
          for (std::int64_t i = 0; i < p.count; ++i) p.master[i] -= rate * (p.gradient[i] * scale);
        } else if (sum == nullptr) {
          descend(p.master, p.gradient, velocity, p.count, rate, scale, momentum);
        } else if (input.round.ends_round) {
          end_round(p.master, p.gradient, velocity, sum, p.count, rate, scale, momentum);
        } else {
          go_on(p.master, p.gradient, sum, p.count, rate, scale);
        }
      });
    });
  }

 private:
  OuterOptions options_;
};

class OuterKind final : public RuleKind<OuterOptions, Outer> {
 public:
  OuterKind() : RuleKind("outer", {}) {}
  [[nodiscard]] std::vector<std::string_view> state_names(const Options& options) const override {
    return state_of(options.as<OuterOptions>());
  }
};

}  // namespace

OptimizerOptions outer_optimizer(double lr, OuterOptions options) {
  static const OuterKind kKind;
  OptimizerOptions outer;
  outer.kind = Chosen<OptimizerKind>(kKind, options);
  outer.lr = lr;
  outer.weight_decay = 0;
  return outer;
}

}  // namespace troika
