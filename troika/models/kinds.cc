// The kinds of models that there are: a new one is a line here, and its folder.
#include <troika/models/gpt/options.h>
#include <troika/models/kind.h>
#include <troika/models/mlp/options.h>
#include <troika/models/resnet/options.h>

namespace troika {

std::span<const ModelKind* const> ModelKind::all() {
  static const std::array kAll = {&gpt_kind(), &mlp_kind(), &resnet_kind()};
  return kAll;
}

const ModelKind& ModelKind::default_kind() {
  return gpt_kind();
}

std::unique_ptr<LanguageModel> ModelKind::language_model(const Options&, const Arena&) const {
  return nullptr;
}

void check_loss(const ModelOptions& model, const Origins& origins) {
  const ModelTraits traits = traits_of(model);
  if (traits.has_own_loss && model.loss != LossOptions()) {
    const bool other = &model.loss.kind() != &LossKind::default_kind();
    std::string written = "model.loss";
    for (const Key& key : model.loss.kind().keys()) {
      const std::string name = "loss." + std::string(key.name);
      if (!other && origins.has(name)) written = name;
    }
    origins.fail({written},
                 "kind = \"" + std::string(model.name()) + "\" has " +
                     std::string(LossKind::default_kind().name()) +
                     " alone, without keys of [loss]: its head never keeps all logits at once",
                 other ? "leave out loss" : "leave out the keys of [loss]");
  }
  model.loss.kind().check_outputs(model.loss.options(), traits.outputs, origins);
}

MetricSubject metric_subject(const ModelOptions& model) {
  const ModelTraits traits = traits_of(model);
  return {model.name(), &model.loss.kind(), traits.outputs, !traits.has_own_loss};
}

Model build_model(const ModelOptions& model, std::uint64_t seed, const ModelLayout& layout) {
  // The check of the recipe has told the user (recipe/resolve.h).
  check(layout.tensor.size() <= traits_of(model).max_tensor, "more tensor ranks than a model has");
  return model.kind().build(model.options(), model.loss, seed, layout);
}

}  // namespace troika
