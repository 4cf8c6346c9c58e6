#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/loss/expression.h>
#include <troika/models/row/network_result.h>
#include <troika/models/torchscript/options.h>
#include <troika/models/torchscript/torchscript.h>

#include <algorithm>
#include <array>

namespace troika {

namespace {

// clang-format off
std::vector<Key> tensor_keys() {
  using O = ScriptTensor;
  using K = KeysOf<O>;
  return {
      K::integers<&O::shape>("shape", ranges::kSize, "of one sample; [] is a number"),
      K::choice<&O::dtype>("dtype", "of its elements"),
      K::integer<&O::classes>("classes", {0, ranges::kSize.max}, "> 0: whole numbers below it"),
  };
}

std::vector<Key> torchscript_keys() {
  using O = TorchscriptOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::path>("path", "the file that torch.jit.save has written; relative to the current folder").required(),
      K::text<&O::evaluation_path>("evaluation_path", "of a trace: the same module traced in eval mode; \"same\": the file itself"),
      K::named_tables<&O::inputs>("inputs", tensor_keys, "what forward() takes, in its order: shape, dtype, classes").required(),
      K::named_tables<&O::targets>("targets", tensor_keys, "what the loss takes: shape, dtype, classes. With loss = \"none\" forward() takes them behind its inputs").required(),
      K::named_tables<&O::outputs>("outputs", tensor_keys, "what forward() returns, in its order; the loss takes the first. {}: what it takes"),
      K::text<&O::loss_output>("loss_output", "with loss = \"none\": the one of `outputs` that is the loss of a microbatch, a number; first: the first"),
      K::text<&O::weight_output>("weight_output", "with loss = \"none\": the one of `outputs` that says what a microbatch weighs, such as how many targets count; samples: how many samples it has"),
      K::choice<&O::loss_reduction>("loss_reduction", "with loss = \"none\": the loss is the mean over the targets of a microbatch, or their sum"),
      K::texts<&O::units>("units", "children of the module, by dotted names, that forward() calls one after the other, and \"flatten\"; pipelines are cut between them. []: the whole module is one unit"),
  };
}
// clang-format on

class TorchscriptKind final : public Declared<ModelKind, TorchscriptOptions> {
 public:
  TorchscriptKind() : Declared("torchscript", torchscript_keys()) {}

  // Whole numbers with classes are int64, whether or not that was written.
  void derive(Options& options, const Origins&) const override {
    auto& model = options.as<TorchscriptOptions>();
    for (std::vector<ScriptTensor>* tensors : {&model.inputs, &model.targets}) {
      for (ScriptTensor& each : *tensors) {
        if (each.classes > 0) each.dtype = ScriptDtype::kInt64;
      }
    }
  }

  void check(const Options& options, const Origins& origins) const override {
    const auto& model = options.as<TorchscriptOptions>();
    if (model.inputs.empty()) {
      origins.fail({"model.inputs"}, "inputs: forward() takes at least one tensor",
                   "as in inputs = { x = { shape = [20] } }");
    }
    if (model.targets.empty()) {
      origins.fail({"model.targets"}, "targets: a sample has at least one",
                   "as in targets = { y = { classes = 10 } }");
    }
    check_names(model, origins);
  }

  [[nodiscard]] bool takes_expressions() const override { return true; }

  void check_loss(const Options& options, const LossOptions& loss,
                  const Origins& origins) const override {
    check_network_loss(options.as<TorchscriptOptions>(), loss, origins);
  }

  [[nodiscard]] std::vector<std::filesystem::path> files(const Options& options) const override {
    return paths_of(options.as<TorchscriptOptions>());
  }

  void check_ready(const Options& options, const LossOptions& loss,
                   const Origins& origins) const override {
    const auto& model = options.as<TorchscriptOptions>();
    try {
      check_torchscript(model, loss);
    } catch (const UsageError& error) {
      origins.fail({"model.path"}, error.what(), error.hint());
    }
    if (expression_of(loss) == nullptr) return;
    locate_expression_errors(origins, [&] { check_torchscript_expression(model, loss); });
  }

  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind& loss) const override {
    const auto& model = options.as<TorchscriptOptions>();
    ModelTraits traits = traits_of_network(model, loss);
    traits.units = std::max<std::int64_t>(1, std::ssize(model.units));
    traits.units_are = model.units.empty() ? "the whole module" : "those of model.units";
    traits.max_stages = traits.units;
    traits.stages_key = "units";
    traits.tensor_limit = "kind = \"torchscript\" does not split its module";
    return traits;
  }

  [[nodiscard]] std::string unit_name(const Options& options, std::int64_t unit) const override {
    const auto& model = options.as<TorchscriptOptions>();
    return model.units.empty() ? "module" : model.units.at(static_cast<std::size_t>(unit));
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t seed,
                            const ModelLayout& layout) const override {
    Model model = build_torchscript(options.as<TorchscriptOptions>(), loss, seed, layout);
    model.facts.count_targets(traits(options, loss.kind()).sample.targets_per_sample);
    return model;
  }

  void save_beside(const Options& options, const std::filesystem::path& model,
                   const std::vector<NamedTensor>& values) const override {
    const auto& own = options.as<TorchscriptOptions>();
    const ProgramFiles saved = saved_files(own, model, program_suffix());
    if (saved.path == model) {
      throw UsageError(shown_path(model) + " would be two files: parameters, and the script",
                       "save parameters under a name that ends in .safetensors; the script then "
                       "lies beside them");
    }
    save_torchscript(own.path, saved.path, values);
    if (const auto evaluation = evaluation_file(own)) {
      save_torchscript(*evaluation, saved.evaluation_path, values);
    }
  }

  [[nodiscard]] std::string_view program_suffix() const override { return ".pt"; }

  void adapt_to_run(Options& options, const std::filesystem::path& model) const override {
    ProgramFiles& own = options.as<TorchscriptOptions>();
    own = saved_files(own, model, program_suffix());
  }

 private:
  // Inputs and targets are one batch.
  static void check_names(const TorchscriptOptions& model, const Origins& origins) {
    for (const ScriptTensor& target : model.targets) {
      if (std::ranges::count(model.inputs, target.name, &ScriptTensor::name) == 0) continue;
      origins.fail({"model.targets"}, "targets: " + quote(target.name) + " is an input too",
                   "inputs and targets have names of their own");
    }
  }
};

}  // namespace

const ModelKind& torchscript_kind() {
  static const TorchscriptKind kKind;
  return kKind;
}

}  // namespace troika
