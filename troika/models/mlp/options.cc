#include <troika/models/mlp/mlp.h>
#include <troika/models/mlp/options.h>

#include <algorithm>

namespace troika {

namespace {

// clang-format off
std::vector<Key> mlp_keys() {
  using O = MlpOptions;
  using K = KeysOf<O>;
  using A = ActivationFunction;
  return {
      K::integer<&O::input_dim>("input_dim", ranges::kSize, "features of a sample").required(),
      K::integers<&O::hidden_dims>("hidden_dims", ranges::kSize, "widths of the hidden layers; [] is a linear model").required(),
      K::integer<&O::output_dim>("output_dim", ranges::kSize, "classes, answers or values to predict").required(),
      K::choice<&O::activation>("activation", "between layers", A::kGelu, A::kRelu, A::kTanh),
  };
}
// clang-format on

class MlpKind final : public Declared<ModelKind, MlpOptions> {
 public:
  MlpKind() : Declared("mlp", mlp_keys()) {}

  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind& loss) const override {
    const auto& model = options.as<MlpOptions>();
    ModelTraits traits;
    traits.sample.tensors = {{"features", at::kFloat, {model.input_dim}},
                             loss.targets(model.output_dim, "output_dim")};
    traits.outputs = model.output_dim;
    traits.outputs_key = "output_dim";
    traits.units = std::ssize(model.hidden_dims) + 1;
    traits.tensor_limit = "kind = \"mlp\" does not split its layers";
    traits.max_stages = traits.units;
    traits.stages_key = "hidden_dims";
    std::int64_t before = model.input_dim;
    for (const std::int64_t dim : model.hidden_dims) {
      traits.largest_product =
          std::max(traits.largest_product, static_cast<double>(before) * static_cast<double>(dim));
      before = dim;
    }
    return traits;
  }

  [[nodiscard]] std::string unit_name(const Options&, std::int64_t unit) const override {
    return "layer " + std::to_string(unit);
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t,
                            const ModelLayout&) const override {
    return build_mlp(options.as<MlpOptions>(), loss);
  }
};

}  // namespace

const ModelKind& mlp_kind() {
  static const MlpKind kKind;
  return kKind;
}

}  // namespace troika
