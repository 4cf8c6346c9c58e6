#include <troika/loss/expression.h>
#include <troika/models/mlp/mlp.h>
#include <troika/models/mlp/network.h>
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
      K::integer<&O::input_dim>("input_dim", ranges::kSize, "features of a sample").derived_from("what the columns of a table give"),
      K::integers<&O::hidden_dims>("hidden_dims", ranges::kSize, "widths of the hidden layers; [] is a linear model").required(),
      K::integer<&O::output_dim>("output_dim", ranges::kSize, "classes, answers or values to predict").derived_from("what the columns of a table give"),
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
    traits.sample.allow_weights();
    traits.outputs = model.output_dim;
    traits.outputs_key = "output_dim";
    traits.output_tensors = {{"outputs", at::kFloat, {model.output_dim}}};
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

  [[nodiscard]] bool has_open_sizes(const Options& options, const Origins& origins) const override {
    const auto& model = options.as<MlpOptions>();
    return (model.input_dim == 0 && !origins.has("model.input_dim")) ||
           (model.output_dim == 0 && !origins.has("model.output_dim"));
  }

  void close_sizes(Options& options, const SampleSpec* sample,
                   const Origins& origins) const override {
    auto& model = options.as<MlpOptions>();
    if (sample == nullptr) {
      const std::string missing = model.input_dim == 0 ? "input_dim" : "output_dim";
      origins.fail({"model." + missing}, "missing required key '" + missing + "'",
                   "only the columns of a table say it");
    }
    const TensorSpec& target = sample->target();
    if (model.input_dim == 0) model.input_dim = sample->input().shape.front();
    if (model.output_dim > 0) return;
    model.output_dim = isFloatingType(target.dtype) ? target.shape.front() : target.range;
  }

  [[nodiscard]] std::string unit_name(const Options&, std::int64_t unit) const override {
    return "layer " + std::to_string(unit);
  }

  [[nodiscard]] bool takes_expressions() const override { return true; }

  void check_ready(const Options& options, const LossOptions& loss,
                   const Origins& origins) const override {
    if (expression_of(loss) == nullptr) return;
    locate_expression_errors(origins, [&] { try_row(row(options, loss), loss); });
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t seed,
                            const ModelLayout& layout) const override {
    if (expression_of(loss) != nullptr) return build_row(row(options, loss), loss, seed, layout);
    return build_mlp(options.as<MlpOptions>(), loss);
  }

 private:
  // The network where its loss needs it as a whole.
  [[nodiscard]] RowModel row(const Options& options, const LossOptions& loss) const {
    return mlp_row(options.as<MlpOptions>(), traits(options, loss.kind()).sample);
  }
};

}  // namespace

const ModelKind& mlp_kind() {
  static const MlpKind kKind;
  return kKind;
}

}  // namespace troika
