#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/models/plugin/library.h>
#include <troika/models/plugin/options.h>
#include <troika/models/row/thrown.h>

#include <filesystem>

namespace troika {
namespace {

// Loads the library that `library` names; the keys of its kind are read next.
void choose_kind(void* options, const Origins& origins) {
  auto& model = *static_cast<PluginOptions*>(options);
  try {
    model.kind = &load_model_plugin(model.library);
  } catch (const UsageError& error) {
    origins.fail({"model.library"}, error.what(), error.hint());
  }
  model.own = model.kind->defaults();
}

// clang-format off
std::vector<Key> plugin_keys() {
  using O = PluginOptions;
  return {
      KeysOf<O>::text<&O::library>("library", "the library of the plug-in, as libmine.so; relative to the current folder").required(),
      {"options",
       OptionsSpec{&choose_kind,
                   [](const void* options) -> const Component* { return static_cast<const O*>(options)->kind; },
                   [](void* options) { return static_cast<O*>(options)->own.data(); },
                   [](const void* options) { return static_cast<const O*>(options)->own.data(); }},
       "the keys that the plug-in declares"},
  };
}
// clang-format on

class PluginKind final : public Declared<ModelKind, PluginOptions> {
 public:
  PluginKind() : Declared("plugin", plugin_keys()) {}

  // The run can be used from any folder.
  void derive(Options& options, const Origins& origins) const override {
    auto& model = options.as<PluginOptions>();
    model.library = std::filesystem::absolute(model.library).lexically_normal().string();
    told(options, origins, [&] { loaded(options).derive(model.own, origins); });
  }
  void check(const Options& options, const Origins& origins) const override {
    told(options, origins, [&] { loaded(options).check(own(options), origins); });
  }
  void check_ready(const Options& options, const LossOptions& loss,
                   const Origins& origins) const override {
    told(options, origins, [&] {
      try {
        loaded(options).check_ready(own(options), loss, origins);
      } catch (const Error& error) {
        origins.fail({"model.library"}, name_of(options) + ": " + error.what(), error.hint());
      }
    });
  }
  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind& loss) const override {
    ModelTraits traits = naming_the_thrower(
        name_of(options), [&] { return loaded(options).traits(own(options), loss); });
    if (traits.tensor_limit.empty()) {
      traits.tensor_limit = "kind = \"plugin\" does not split its modules";
    }
    return traits;
  }
  [[nodiscard]] bool takes_expressions() const override { return true; }
  [[nodiscard]] std::string unit_name(const Options& options, std::int64_t unit) const override {
    return loaded(options).unit_name(own(options), unit);
  }
  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t seed,
                            const ModelLayout& layout) const override {
    return naming_the_thrower(
        name_of(options), [&] { return loaded(options).build(own(options), loss, seed, layout); });
  }
  [[nodiscard]] std::unique_ptr<LanguageModel> language_model(const Options& options,
                                                              const Arena& arena) const override {
    return loaded(options).language_model(own(options), arena);
  }
  [[nodiscard]] std::vector<std::filesystem::path> files(const Options& options) const override {
    std::vector<std::filesystem::path> files = {options.as<PluginOptions>().library};
    for (auto& each : loaded(options).files(own(options))) files.push_back(std::move(each));
    return files;
  }
  void save_beside(const Options& options, const std::filesystem::path& model,
                   const std::vector<NamedTensor>& values) const override {
    loaded(options).save_beside(own(options), model, values);
  }

 private:
  [[nodiscard]] static std::string name_of(const Options& options) {
    return shown_path(options.as<PluginOptions>().library);
  }
  // Calls into the library; its own exceptions are told with its name, and the place in the recipe.
  template <class Call>
  static void told(const Options& options, const Origins& origins, const Call& call) {
    std::string thrown;
    try {
      return call();
    } catch (const Error&) {
      throw;
    } catch (...) {
      thrown = line_of_exception();
    }
    origins.fail({"model.options", "model.library"}, name_of(options) + " throws: " + thrown);
  }

  [[nodiscard]] static const ModelKind& loaded(const Options& options) {
    const ModelKind* kind = options.as<PluginOptions>().kind;
    troika::check(kind != nullptr, "a plug-in that no recipe has loaded");
    return *kind;
  }
  [[nodiscard]] static const Options& own(const Options& options) {
    return options.as<PluginOptions>().own;
  }
};

}  // namespace

const ModelKind& plugin_kind() {
  static const PluginKind kKind;
  return kKind;
}

}  // namespace troika
