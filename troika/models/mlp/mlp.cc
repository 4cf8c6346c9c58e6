#include <troika/models/mlp/layers.h>
#include <troika/models/mlp/mlp.h>

#include <numeric>

namespace troika {

Model build_mlp(const MlpOptions& options, const LossOptions& loss) {
  Model model;
  std::int64_t in = options.input_dim, index = 0;
  for (const std::int64_t out : options.hidden_dims) {
    model.units.push_back(std::make_unique<MlpHiddenLayer>(index++, in, out, options.activation));
    model.facts.unit_flops.push_back(6.0 * static_cast<double>(in * out));
    in = out;
  }
  model.units.push_back(std::make_unique<MlpLossLayer>(index, in, options.output_dim,
                                                       loss.kind().make(loss.options())));
  model.facts.unit_flops.push_back(6.0 * static_cast<double>(in * options.output_dim));
  model.facts.flops_per_sample =
      std::accumulate(model.facts.unit_flops.begin(), model.facts.unit_flops.end(), 0.0);
  return model;
}

}  // namespace troika
