#include <troika/base/error.h>
#include <troika/config/choices.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/mlp/mlp.h>
#include <troika/models/model.h>

#include <string>

namespace troika {
namespace {

void check_unsplit(const ModelRecipe& recipe, const TensorAxis& tensor) {
  if (!tensor.split()) return;
  throw UsageError("parallel.tensor = " + std::to_string(tensor.size()) + ": a model of kind \"" +
                       std::string(name_of(recipe.kind)) + "\" is not split",
                   "write tensor = 1");
}

}  // namespace

Model build_model(const ModelRecipe& recipe, std::uint64_t seed, const ModelLayout& layout) {
  switch (recipe.kind) {
    case ModelKind::kGpt:
      return build_gpt(recipe, seed, layout);
    case ModelKind::kMlp:
      check_unsplit(recipe, layout.tensor);
      return build_mlp(recipe);
  }
  throw InternalError("internal error: unknown kind of model");
}

}  // namespace troika
