#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/exported/save.h>
#include <troika/loss/expression.h>
#include <troika/models/exported/exported.h>
#include <troika/models/exported/options.h>
#include <troika/models/row/network_result.h>
#include <troika/models/row/row_model.h>

#include <algorithm>

namespace troika {
namespace {

// clang-format off
template <class O>
std::vector<Key> tensor_keys_of() {
  using K = KeysOf<O>;
  return {
      K::template integers<&O::shape>("shape", ranges::kSize, "of one sample; []: that of the file, or a number"),
      K::template choice<&O::dtype>("dtype", "of its elements"),
      K::template integer<&O::classes>("classes", {0, ranges::kSize.max}, "> 0: whole numbers below it"),
  };
}

std::vector<Key> tensor_keys() {
  return tensor_keys_of<ScriptTensor>();
}

std::vector<Key> input_keys() {
  using K = KeysOf<ExportedInput>;
  std::vector<Key> keys = tensor_keys_of<ExportedInput>();
  keys.push_back(K::text<&ExportedInput::mask_of>("mask_of", "the input of tokens whose mask it is, 1 for each and 0 behind them"));
  return keys;
}

std::vector<Key> exported_keys() {
  using O = ExportedOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::path>("path", "the file that torch.export.save has written; relative to the current folder").required(),
      K::text<&O::evaluation_path>("evaluation_path", "the same module, exported in eval mode, where its branches differ from those of training; \"same\": the file itself"),
      K::named_tables<&O::inputs>("inputs", input_keys, "what the file does not say of its inputs: classes, and extents that were exported as dynamic. {}: nothing"),
      K::named_tables<&O::targets>("targets", tensor_keys, "what the loss takes: shape, dtype, classes. With loss = \"none\" inputs of the program").required(),
      K::named_tables<&O::outputs>("outputs", tensor_keys, "the results that are used, by name; the loss takes the first. {}: all, in their order"),
      K::text<&O::loss_output>("loss_output", "with loss = \"none\": the one of `outputs` that is the loss of a microbatch, a number; first: the first"),
      K::text<&O::weight_output>("weight_output", "with loss = \"none\": the one of `outputs` that says what a microbatch weighs, such as how many targets count; samples: how many samples it has"),
      K::texts<&O::checkpoint_modules>("checkpoint_modules", "modules whose activations are computed again in the backward pass, by shell patterns of their dotted paths: [\"encoder.layer.*\"]"),
      K::choice<&O::loss_reduction>("loss_reduction", "with loss = \"none\": the loss is the mean over the targets of a microbatch, or their sum"),
  };
}
// clang-format on

class ExportedKind final : public Declared<ModelKind, ExportedOptions> {
 public:
  ExportedKind() : Declared("exported", exported_keys()) {}

  // The tensors of the file, where it is there already.
  void derive(Options& options, const Origins& origins) const override {
    auto& model = options.as<ExportedOptions>();
    for (ScriptTensor& each : model.targets) {
      if (each.classes > 0) each.dtype = ScriptDtype::kInt64;
    }
    try {
      complete_from_file(model);
    } catch (const UsageError& error) {
      origins.fail({"model.path"}, error.what(), error.hint());
    }
  }

  void check(const Options& options, const Origins& origins) const override {
    const auto& model = options.as<ExportedOptions>();
    if (!model.targets.empty()) return;
    origins.fail({"model.targets"}, "targets: a sample has at least one",
                 "as in targets = { y = { classes = 10 } }");
  }

  [[nodiscard]] bool takes_expressions() const override { return true; }

  void check_loss(const Options& options, const LossOptions& loss,
                  const Origins& origins) const override {
    const auto& model = options.as<ExportedOptions>();
    if (!model.inputs.empty()) check_network_loss(network_of(model), loss, origins);
  }

  [[nodiscard]] std::vector<std::filesystem::path> files(const Options& options) const override {
    return paths_of(options.as<ExportedOptions>());
  }

  void check_ready(const Options& options, const LossOptions& loss,
                   const Origins& origins) const override {
    const auto& model = options.as<ExportedOptions>();
    try {
      ExportedOptions found = model;
      complete_from_file(found);
      const RowModel row = exported_row(found, loss);
      if (expression_of(loss) != nullptr) {
        locate_expression_errors(origins, [&] { try_expression(row); });
      } else {
        try_row(row, loss);
      }
    } catch (const UsageError& error) {
      origins.fail({"model.path"}, error.what(), error.hint());
    }
  }

  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind& loss) const override {
    ModelTraits traits = traits_of_network(network_of(options.as<ExportedOptions>()), loss);
    traits.units_are = "the whole program";
    traits.stages_key = "path";
    traits.tensor_limit = "kind = \"exported\" does not split its program";
    return traits;
  }

  [[nodiscard]] std::string unit_name(const Options&, std::int64_t) const override {
    return "program";
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t seed,
                            const ModelLayout& layout) const override {
    return build_row(exported_row(options.as<ExportedOptions>(), loss), loss, seed, layout);
  }

  void save_beside(const Options& options, const std::filesystem::path& model,
                   const std::vector<NamedTensor>& values) const override {
    const auto& own = options.as<ExportedOptions>();
    const ProgramFiles saved = saved_files(own, model, program_suffix());
    save_exported(own.path, saved.path, values);
    if (const auto evaluation = evaluation_file(own)) {
      save_exported(*evaluation, saved.evaluation_path, values);
    }
  }

  [[nodiscard]] std::string_view program_suffix() const override { return ".pt2"; }

  void adapt_to_run(Options& options, const std::filesystem::path& model) const override {
    ProgramFiles& own = options.as<ExportedOptions>();
    own = saved_files(own, model, program_suffix());
  }
};

}  // namespace

const ModelKind& exported_kind() {
  static const ExportedKind kKind;
  return kKind;
}

}  // namespace troika
