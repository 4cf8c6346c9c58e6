#include <troika/base/vectorize.h>
#include <troika/optim/arena_optimizer.h>

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

template <typename T>
class Sgd final : public ArenaOptimizer<T> {
 public:
  Sgd(const OptimizerRecipe& recipe, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), kinds(recipe)), recipe_(recipe) {}

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    const SgdCoefficients<T> c{static_cast<T>(input.learning_rate),
                               static_cast<T>(input.gradient_scale),
                               static_cast<T>(recipe_.momentum)};
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      const T decay = p.decays ? static_cast<T>(recipe_.weight_decay) : T{0};
      T* const velocity = p.state[0];
      if (velocity == nullptr) {
        vectorized([&] { descend(p.master, p.gradient, p.count, decay, c); });
      } else if (recipe_.nesterov) {
        vectorized([&] { descend<true>(p.master, p.gradient, velocity, p.count, decay, c); });
      } else {
        vectorized([&] { descend<false>(p.master, p.gradient, velocity, p.count, decay, c); });
      }
    });
  }

 private:
  static std::vector<std::string_view> kinds(const OptimizerRecipe& recipe) {
    if (recipe.momentum == 0) return {};
    return {"momentum"};
  }

  OptimizerRecipe recipe_;
};

}  // namespace

template <typename T>
std::unique_ptr<Optimizer> make_sgd(const OptimizerRecipe& recipe, Arena& arena, SharedSums sums) {
  return std::make_unique<Sgd<T>>(recipe, arena, std::move(sums));
}
template std::unique_ptr<Optimizer> make_sgd<float>(const OptimizerRecipe&, Arena&, SharedSums);
template std::unique_ptr<Optimizer> make_sgd<double>(const OptimizerRecipe&, Arena&, SharedSums);

}  // namespace troika
