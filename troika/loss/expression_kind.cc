// The keys of loss = "expression".
#include <troika/loss/expression.h>

#include <troika/base/error.h>

#include <string>

namespace troika {
namespace {

// clang-format off
std::vector<Key> target_keys() {
  using K = KeysOf<ExpressionTarget>;
  return {K::integers<&ExpressionTarget::shape>("shape", ranges::kSize, "of one sample; [] is a number")};
}

std::vector<Key> quantity_keys() {
  using O = Quantity;
  using K = KeysOf<O>;
  return {
      K::text<&O::value>("value", "an expression of Python over inputs, outputs and quantities before it; derivative(OF, BY) has the shape of the input BY").required(),
      K::integers<&O::shape>("shape", ranges::kSize, "of one sample; [] is a number"),
  };
}

std::vector<Key> expression_keys() {
  using O = ExpressionOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::value>("value", "the loss of each sample: an expression of Python over inputs, outputs, quantities and targets; squared_error(VALUE, TARGET) is the mean over a sample's values").required(),
      K::named_tables<&O::targets>("targets", target_keys, "what the data give beside the inputs: shape. {}: those that the model declares"),
      K::named_tables<&O::quantities>("quantities", quantity_keys, "what the model gives beside its outputs, such as forces and residuals: value, shape"),
  };
}
// clang-format on

class ExpressionKind final : public Declared<LossKind, ExpressionOptions> {
 public:
  ExpressionKind() : Declared("expression", expression_keys()) {}

  [[nodiscard]] TargetMeaning target_meaning() const override { return TargetMeaning::kValues; }
  [[nodiscard]] bool takes_outputs() const override { return false; }
  // Where the recipe declares no targets.
  [[nodiscard]] TensorSpec targets(std::int64_t outputs, std::string_view) const override {
    TensorSpec spec{"targets", at::kFloat, {outputs}};
    spec.role = TensorRole::kTarget;
    return spec;
  }
  [[nodiscard]] std::shared_ptr<const Loss> make(const Options&) const override {
    troika::check(false, "a loss of outputs alone asked of loss = \"expression\"");
    return nullptr;
  }
};

}  // namespace

const LossKind& expression_kind() {
  static const ExpressionKind kKind;
  return kKind;
}

const ExpressionOptions* expression_of(const LossOptions& loss) {
  return &loss.kind() == &expression_kind() ? &loss.options().as<ExpressionOptions>() : nullptr;
}

void locate_expression_errors(const Origins& origins, FunctionRef<void()> act) {
  try {
    act();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    const std::string key = "loss." + text.substr(0, text.find_first_of(": "));
    origins.fail({origins.has(key) ? key : "loss.value", "model.loss"}, text, error.hint());
  }
}

}  // namespace troika
