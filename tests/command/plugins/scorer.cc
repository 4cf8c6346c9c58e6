// A plug-in with two inputs, a whole network as one unit, a required key and a loss of its own.
#include <torch/torch.h>
#include <troika/model_plugin.h>

#include <stdexcept>

namespace {

struct ScorerOptions {
  std::int64_t width = 0;
  std::string fails = "never";

  bool operator==(const ScorerOptions&) const = default;
};

struct ScorerImpl : torch::nn::Module {
  explicit ScorerImpl(const ScorerOptions& options)
      : fails(options.fails),
        table(register_module("table", torch::nn::Embedding(3, options.width))),
        read(register_module("read", torch::nn::Linear(4, options.width))),
        score(register_module("score", torch::nn::Linear(options.width, 1))) {
    if (fails == "module") throw std::runtime_error("no room\nat all");
  }
  torch::Tensor forward(const torch::Tensor& values, const torch::Tensor& group) {
    if (fails == "forward") throw std::runtime_error("not today\nnor tomorrow");
    if (fails == "number") throw 5;
    if (fails == "shape") return read(values);
    if (fails == "third pass" && ++passes == 3) throw std::runtime_error("tired");
    return score(torch::tanh(read(values) + table(group)));
  }
  std::string fails;
  int passes = 0;
  torch::nn::Embedding table;
  torch::nn::Linear read, score;
};
TORCH_MODULE(Scorer);

// Samples of group 0 weigh twice as much as others.
troika::LossTerms weighted(const troika::TensorMap& outputs, const troika::TensorMap& batch) {
  const at::Tensor weights = (batch.at("group") == 0).to(outputs[0].scalar_type()) + 1;
  const at::Tensor squares = (outputs[0] - batch.at("targets")).square().squeeze(1);
  return {(weights * squares).sum(), weights.sum()};
}

class ScorerKind final : public troika::ModelPlugin<ScorerOptions> {
 public:
  using K = troika::KeysOf<ScorerOptions>;
  ScorerKind()
      : ModelPlugin("scorer",
                    {K::integer<&ScorerOptions::width>("width", {1, 64}, "hidden").required(),
                     K::text<&ScorerOptions::fails>("fails", "what throws")}) {}

  void validate(const ScorerOptions& options) const override {
    if (options.fails == "validate") throw std::runtime_error("no such luck");
    if (options.fails == "validate number") throw 5;
  }
  [[nodiscard]] troika::SampleSpec sample(const ScorerOptions&) const override {
    return {.tensors = {{.name = "values", .shape = {4}},
                        {.name = "group", .dtype = at::kLong, .shape = {}, .range = 3},
                        {.name = "targets", .shape = {1}, .role = troika::TensorRole::kTarget}}};
  }
  [[nodiscard]] std::vector<troika::NamedUnit> units(const ScorerOptions& options) const override {
    const bool wrong = options.fails == "units";
    const auto unit = troika::unit("scorer", [options] { return Scorer(options); },
                                   {{"values", wrong ? "groups" : "group"}, {{"score", {1}}}});
    if (options.fails == "names") return {unit, unit};
    return {unit};
  }
  [[nodiscard]] troika::UnitLoss loss(const ScorerOptions&) const override { return weighted; }
};

}  // namespace

TROIKA_MODEL_PLUGIN(ScorerKind)
