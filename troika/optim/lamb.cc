// LAMB (You et al. 2020).
#include <troika/base/vectorize.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/kinds.h>
#include <troika/optim/moments.h>
#include <troika/optim/square_sum.h>

#include <cmath>

namespace troika {
namespace {

template <typename T>
inline void advance(const T* __restrict g, T* __restrict first, T* __restrict second,
                    std::int64_t count, const Moments<T> moments) {
  for (std::int64_t i = 0; i < count; ++i) {
    T m = first[i], v = second[i];
    moments.advance(g[i], m, v);
    first[i] = m;
    second[i] = v;
  }
}

// u = m^ / (sqrt(v^) + eps) + decay w.
template <typename T>
inline void compute_update(T* __restrict u, const T* __restrict w, const T* __restrict first,
                           const T* __restrict second, std::int64_t count, const Moments<T> moments,
                           T decay) {
  for (std::int64_t i = 0; i < count; ++i) {
    u[i] = moments.direction(first[i], second[i]) + decay * w[i];
  }
}

template <typename T>
class Lamb final : public ArenaOptimizer<T> {
  using ChunkView = typename ArenaOptimizer<T>::ChunkView;
  using ShardView = typename ArenaOptimizer<T>::ShardView;
  using Buffer = std::array<T, kChunkElements>;

 public:
  Lamb(const MomentOptions& options, double weight_decay, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), weight_decay, {"exp_avg", "exp_avg_sq"}),
        options_(options) {}

  [[nodiscard]] bool takes_device_scale() const override { return false; }

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    const Moments<T> moments(options_, input);
    if (!this->on_host()) return step_shards(moments, input);
    const std::vector<double> ratios = advance_and_measure(moments);
    this->update_chunks([&](const ChunkView& p) {
      const auto rate = static_cast<T>(input.learning_rate * p.lr_factor * ratios[p.parameter]);
      Buffer buffer;
      T* const u = buffer.data();
      vectorized([&] {
        compute_update(u, p.master, p.state[0], p.state[1], p.count, moments, decay(p));
        for (std::int64_t i = 0; i < p.count; ++i) p.master[i] -= rate * u[i];
      });
    });
  }

 private:
  [[nodiscard]] T decay(const ChunkView& p) const { return static_cast<T>(p.weight_decay); }

  // Takes in the gradients; |w| / |u| by parameter. The updates u are computed anew by the second
  // pass, which costs less than storing them.
  [[nodiscard]] std::vector<double> advance_and_measure(const Moments<T>& moments) const {
    std::vector<double> weights(this->chunk_count()), updates(this->chunk_count());
    this->for_each_chunk_view([&](const ChunkView& p, std::size_t i) {
      vectorized([&] { advance(p.gradient, p.state[0], p.state[1], p.count, moments); });
      if (!p.decays) return;  // both sums stay zero: a ratio of 1
      Buffer buffer;
      vectorized([&] {
        compute_update(buffer.data(), p.master, p.state[0], p.state[1], p.count, moments, decay(p));
      });
      weights[i] = square_sum(p.master, p.counted);
      updates[i] = square_sum(buffer.data(), p.counted);
    });
    return ratios_of(this->reduce_by_parameter(weights, "norms of weights"),
                     this->reduce_by_parameter(updates, "norms of updates"));
  }

  void step_shards(const Moments<T>& moments, const StepInput& input) const {
    std::vector<at::Tensor> weights(this->shard_count()), updates(this->shard_count());
    const auto update_of = [&](const ShardView& p) {
      return moments.direction(p.state[0], p.state[1]).add_(p.master, p.weight_decay);
    };
    this->for_each_shard([&](const ShardView& p) {
      moments.advance(p.gradient, p.state[0], p.state[1]);
      if (!p.decays) return;
      weights[p.index] = p.master;
      updates[p.index] = update_of(p);
    });
    const std::vector<double> ratios =
        ratios_of(this->squares_by_parameter(weights, "norms of weights"),
                  this->squares_by_parameter(updates, "norms of updates"));
    this->update_shards([&](const ShardView& p) {
      const at::Tensor& kept = updates[p.index];
      p.master.sub_(kept.defined() ? kept : update_of(p),
                    input.learning_rate * p.lr_factor * ratios[p.parameter]);
    });
  }

  // |w| / |u| by parameter, from the squares; 1 where one of them is zero.
  [[nodiscard]] static std::vector<double> ratios_of(std::vector<double> ratios,
                                                     const std::vector<double>& divisors) {
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      const bool usable = ratios[i] > 0 && divisors[i] > 0;
      ratios[i] = usable ? std::sqrt(ratios[i]) / std::sqrt(divisors[i]) : 1.0;
    }
    return ratios;
  }

  MomentOptions options_;
};

class LambKind final : public RuleKind<MomentOptions, Lamb> {
 public:
  LambKind() : RuleKind("lamb", moment_keys()) {}
  [[nodiscard]] bool uses_layer_norms() const override { return true; }
  [[nodiscard]] std::vector<std::string_view> state_names(const Options&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
};

}  // namespace

const OptimizerKind& lamb_kind() {
  static const LambKind kKind;
  return kKind;
}

}  // namespace troika
