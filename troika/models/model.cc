#include <troika/base/error.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/mlp/mlp.h>
#include <troika/models/model.h>

namespace troika {

Model build_model(const ModelRecipe& recipe, std::uint64_t seed, const ModelLayout& layout) {
  switch (recipe.kind) {
    case ModelKind::kGpt:
      return build_gpt(recipe, seed, layout);
    case ModelKind::kMlp:
      // check_split() of config/layout.h has told the user.
      check(!layout.tensor.split(), "a perceptron on a tensor axis");
      return build_mlp(recipe);
  }
  throw InternalError("internal error: unknown kind of model");
}

}  // namespace troika
