#include <troika/base/error.h>
#include <troika/optim/arena_optimizer.h>
#include <troika/optim/optimizer.h>

namespace troika {
namespace {

template <typename T>
std::unique_ptr<Optimizer> make_for(const OptimizerRecipe& recipe, Arena& arena, SharedSums sums) {
  switch (recipe.kind) {
    case OptimizerKind::kSgd:
      return make_sgd<T>(recipe, arena, std::move(sums));
    case OptimizerKind::kAdamW:
      return make_adamw<T>(recipe, arena, std::move(sums));
    case OptimizerKind::kLamb:
      return make_lamb<T>(recipe, arena, std::move(sums));
    case OptimizerKind::kLars:
      return make_lars<T>(recipe, arena, std::move(sums));
  }
  throw InternalError("internal error: an optimizer kind without an implementation");
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, Arena& arena,
                                          SharedSums sums) {
  if (!sums) sums = std::make_shared<ParameterSums>(arena);
  switch (arena.types().master) {
    case at::kFloat:
      return make_for<float>(recipe, arena, std::move(sums));
    case at::kDouble:
      return make_for<double>(recipe, arena, std::move(sums));
    default:
      throw InternalError("internal error: master weights are neither fp32 nor fp64");
  }
}

}  // namespace troika
