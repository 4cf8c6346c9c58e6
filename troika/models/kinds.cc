// The kinds of models that there are: a new one is a line here, and its folder.
#include <troika/models/adapter_names.h>
#include <troika/models/exported/options.h>
#include <troika/models/gpt/options.h>
#include <troika/models/kind.h>
#include <troika/models/mlp/options.h>
#include <troika/models/plugin/options.h>
#include <troika/models/resnet/options.h>
#include <troika/models/row/expression_row.h>
#include <troika/models/torchscript/options.h>

namespace troika {

std::span<const ModelKind* const> ModelKind::all() {
  static const std::array kAll = {&gpt_kind(),         &mlp_kind(),      &resnet_kind(),
                                  &torchscript_kind(), &exported_kind(), &plugin_kind()};
  return kAll;
}

const ModelKind& ModelKind::default_kind() {
  return gpt_kind();
}

bool ModelKind::has_open_sizes(const Options&, const Origins&) const {
  return false;
}

void ModelKind::close_sizes(Options&, const SampleSpec*, const Origins&) const {}

std::unique_ptr<LanguageModel> ModelKind::language_model(const Options&, const Arena&) const {
  return nullptr;
}

std::vector<std::filesystem::path> ModelKind::files(const Options&) const {
  return {};
}

void ModelKind::check_loss(const Options&, const LossOptions& loss, const Origins& origins) const {
  if (!loss.kind().is_of_model()) return;
  origins.fail({"model.loss"},
               "loss = \"none\" is for a network that returns its loss, and kind = \"" +
                   std::string(name()) + "\" returns none",
               "kind = \"exported\" and \"torchscript\" take one; leave out loss");
}

void ModelKind::check_ready(const Options&, const LossOptions&, const Origins&) const {}

void ModelKind::adapt_to_run(Options&, const std::filesystem::path&) const {}

void ModelKind::save_beside(const Options&, const std::filesystem::path&,
                            const std::vector<NamedTensor>&) const {}

HubForm ModelKind::hub_form(const Options&) const {
  throw UsageError(
      "a model of kind = \"" + std::string(name()) +
          "\" has no counterpart in Hugging Face's libraries",
      "kind = \"gpt\" has; what other programs read of any model is model.safetensors");
}

bool ModelKind::read_hub_config(Options&, std::string_view, const std::string&) const {
  return false;
}

ModelTraits traits_of(const ModelOptions& model) {
  ModelTraits traits = model.kind().traits(model.options(), model.loss.kind());
  if (const ExpressionOptions* const expression = expression_of(model.loss)) {
    add_expression(traits, *expression);
  }
  return traits;
}

void check_loss(const ModelOptions& model, const Origins& origins) {
  if (expression_of(model.loss) != nullptr && !model.kind().takes_expressions()) {
    origins.fail({"model.loss"},
                 "loss = \"expression\" is not for kind = \"" + std::string(model.name()) + "\"",
                 "mlp, exported, torchscript and plug-ins take it");
  }
  const ModelTraits traits = traits_of(model);
  if (traits.has_own_loss && model.loss != LossOptions()) {
    const bool other = &model.loss.kind() != &LossKind::default_kind();
    std::string written = "model.loss";
    for (const Key& key : model.loss.kind().keys()) {
      const std::string name = "loss." + std::string(key.name);
      if (!other && origins.has(name)) written = name;
    }
    origins.fail({written}, "kind = \"" + std::string(model.name()) + "\" has " + traits.own_loss,
                 other ? "leave out loss" : "leave out the keys of [loss]");
  }
  model.kind().check_loss(model.options(), model.loss, origins);
  model.loss.kind().check_outputs(model.loss.options(), traits.outputs, origins);
}

MetricSubject metric_subject(const ModelOptions& model) {
  const ModelTraits traits = traits_of(model);
  return {model.name(), &model.loss.kind(), traits.outputs,
          !traits.has_own_loss && model.loss.kind().takes_outputs()};
}

Model build_model(const ModelOptions& model, std::uint64_t seed, const ModelLayout& layout) {
  // The check of the recipe has told the user (recipe/resolve.h).
  check(layout.tensor.size() <= traits_of(model).max_tensor, "more tensor ranks than a model has");
  Model built = model.kind().build(model.options(), model.loss, seed, layout);
  const LoraOptions* const lora = model.adapter.lora();
  if (lora == nullptr) return built;
  LoraTargets targets(with_own_names(*lora, model), seed);
  for (const auto& unit : built.units) unit->adapt(targets);
  targets.check();
  built.linear_layers = targets.layers();
  built.adapted_layers = targets.adapted();
  return built;
}

}  // namespace troika
