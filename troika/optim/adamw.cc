#include <troika/base/vectorize.h>
#include <troika/optim/arena_optimizer.h>
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
  AdamW(const OptimizerRecipe& recipe, Arena& arena, SharedSums sums)
      : ArenaOptimizer<T>(arena, std::move(sums), {"exp_avg", "exp_avg_sq"}), recipe_(recipe) {}

  void step(const StepInput& input) override {
    require_gradients(this->arena());
    const Moments<T> moments(recipe_, input);
    const auto rate = static_cast<T>(input.learning_rate);
    const auto shrink = static_cast<T>(1 - input.learning_rate * recipe_.weight_decay);
    this->update_chunks([&](const typename ArenaOptimizer<T>::ChunkView& p) {
      vectorized([&] {
        descend(p.master, p.gradient, p.state[0], p.state[1], p.count, moments, rate,
                p.decays ? shrink : T{1});
      });
    });
  }

 private:
  OptimizerRecipe recipe_;
};

}  // namespace

template <typename T>
std::unique_ptr<Optimizer> make_adamw(const OptimizerRecipe& recipe, Arena& arena,
                                      SharedSums sums) {
  return std::make_unique<AdamW<T>>(recipe, arena, std::move(sums));
}
template std::unique_ptr<Optimizer> make_adamw<float>(const OptimizerRecipe&, Arena&, SharedSums);
template std::unique_ptr<Optimizer> make_adamw<double>(const OptimizerRecipe&, Arena&, SharedSums);

}  // namespace troika
