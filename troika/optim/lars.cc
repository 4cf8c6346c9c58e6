// LARS (You et al. 2017).
#include <troika/base/vectorize.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>
#include <troika/optim/square_sum.h>

#include <cmath>

namespace troika {
namespace {

template <typename T>
struct LarsCoefficients {
  T rate, scale, momentum, decay;
};

// `kAhead`: Nesterov's momentum. The rate goes into the momentum, as in the paper, so a change of
// the rate acts on new gradients only.
template <bool kAhead, typename T>
inline void descend(T* __restrict w, const T* __restrict g, T* __restrict b, std::int64_t count,
                    const LarsCoefficients<T> c) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T d = c.rate * (g[i] * c.scale + c.decay * w[i]);
    const T velocity = c.momentum * b[i] + d;
    b[i] = velocity;
    w[i] -= kAhead ? d + c.momentum * velocity : velocity;
  }
}

template <typename T>
class Lars final : public ArenaOptimizer<T> {
  using ChunkView = typename ArenaOptimizer<T>::ChunkView;
  using ShardView = typename ArenaOptimizer<T>::ShardView;

 public:
  Lars(const MomentumOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, {"momentum"}), options_(options) {}

  [[nodiscard]] bool takes_device_scale() const override { return false; }

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    const std::vector<double> factors = local_factors(input.gradient_scale);
    if (!this->on_host()) return step_shards(input, factors);
    this->update_chunks([&](const ChunkView& p) {
      const LarsCoefficients<T> c{
          static_cast<T>(input.learning_rate * p.lr_factor * factors[p.parameter]),
          static_cast<T>(input.gradient_scale), static_cast<T>(options_.momentum),
          static_cast<T>(p.weight_decay)};
      vectorized([&] {
        if (options_.nesterov) {
          descend<true>(p.master, p.gradient, p.state[0], p.count, c);
        } else {
          descend<false>(p.master, p.gradient, p.state[0], p.count, c);
        }
      });
    });
  }

 private:
  // eta |w| / (|g| + wd |w|) by parameter, or 1 where that does not apply.
  [[nodiscard]] std::vector<double> local_factors(double gradient_scale) const {
    auto [factors, squares] = this->on_host() ? squares_of_chunks() : squares_of_shards();
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double weight = std::sqrt(factors[i]);
      const double gradient = std::sqrt(squares[i]) * std::abs(gradient_scale);
      factors[i] = weight > 0 && gradient > 0
                       ? kLarsTrust * weight / (gradient + this->weight_decay_of(i) * weight)
                       : 1.0;
    }
    return factors;
  }

  // Squares of weights and of gradients, by parameter.
  using TwoSquares = std::pair<std::vector<double>, std::vector<double>>;
  [[nodiscard]] TwoSquares squares_of_chunks() const {
    std::vector<double> weights(this->chunk_count()), gradients(this->chunk_count());
    this->for_each_chunk_view([&](const ChunkView& p, std::size_t i) {
      if (!p.decays) return;  // both sums stay zero
      weights[i] = square_sum(p.master, p.counted);
      gradients[i] = square_sum(p.gradient, p.counted);
    });
    return {this->reduce_by_parameter(weights, "norms of weights"),
            this->reduce_by_parameter(gradients, "norms of gradients")};
  }
  [[nodiscard]] TwoSquares squares_of_shards() const {
    std::vector<at::Tensor> weights(this->shard_count()), gradients(this->shard_count());
    this->for_each_shard([&](const ShardView& p) {
      if (!p.decays) return;
      weights[p.index] = p.master;
      gradients[p.index] = p.gradient;
    });
    return {this->squares_by_parameter(weights, "norms of weights"),
            this->squares_by_parameter(gradients, "norms of gradients")};
  }

  void step_shards(const StepInput& input, const std::vector<double>& factors) const {
    this->update_shards([&](const ShardView& p) {
      const at::Tensor d = (p.gradient * input.gradient_scale)
                               .add_(p.master, p.weight_decay)
                               .mul_(input.learning_rate * p.lr_factor * factors[p.parameter]);
      const at::Tensor& velocity = p.state[0];
      velocity.mul_(options_.momentum).add_(d);
      p.master.sub_(options_.nesterov ? d.add_(velocity, options_.momentum) : velocity);
    });
  }

  MomentumOptions options_;
};

class LarsKind final : public RuleKind<MomentumOptions, Lars> {
 public:
  LarsKind() : RuleKind("lars", momentum_keys()) {}
  [[nodiscard]] bool uses_layer_norms() const override { return true; }
  [[nodiscard]] std::vector<std::string_view> state_names(const Options&) const override {
    return {"momentum"};
  }
  void check(const Options& options, const Origins& origins) const override {
    check_momentum(options.as<MomentumOptions>(), origins);
  }
};

}  // namespace

const OptimizerKind& lars_kind() {
  static const LarsKind kKind;
  return kKind;
}

}  // namespace troika
