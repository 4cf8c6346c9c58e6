#include <troika/models/mlp/layers.h>
#include <troika/models/mlp/mlp.h>

#include <numeric>

namespace troika {

Model build_mlp(const ModelRecipe& recipe) {
  Model model;
  std::int64_t in = recipe.input_dim, index = 0;
  for (const std::int64_t out : recipe.hidden_dims) {
    model.units.push_back(std::make_unique<MlpHiddenLayer>(index++, in, out, recipe.activation));
    model.facts.unit_flops.push_back(6.0 * static_cast<double>(in * out));
    in = out;
  }
  model.units.push_back(std::make_unique<MlpLossLayer>(index, in, recipe.output_dim, recipe.loss));
  model.facts.unit_flops.push_back(6.0 * static_cast<double>(in * recipe.output_dim));
  model.facts.flops_per_sample =
      std::accumulate(model.facts.unit_flops.begin(), model.facts.unit_flops.end(), 0.0);
  return model;
}

}  // namespace troika
