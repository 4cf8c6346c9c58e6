// The recipe of a run on the machines that it is to run on.
#include <troika/recipe/resolve.h>
#include <troika/train/precision.h>
#include <troika/train/run.h>

namespace troika {

Recipe resolve_for_run(const Recipe& recipe, int ranks, const Origins& origins, HostPosition own) {
  Recipe resolved = resolve_recipe(recipe, ranks, origins, own.size);
  resolved.train.precision = resolve_precision(recipe.train, own);
  return resolved;
}

Recipe resolve_for_run(const Recipe& recipe, int ranks, Precision automatic,
                       const Origins& origins) {
  Recipe resolved = resolve_recipe(recipe, ranks, origins);
  if (recipe.train.precision == Precision::kAuto) resolved.train.precision = automatic;
  return resolved;
}

}  // namespace troika
