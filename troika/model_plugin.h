// A kind of model in a library of your own, which a recipe names: [model] kind = "plugin", library
// = "libmine.so". Derive from ModelPlugin, say what one sample is and which units the network is
// made of, and name the class once. Keys of the kind stand in [model.options]. Extends LibTorch.
//
//   struct Sizes {
//     std::int64_t width = 64;
//     bool operator==(const Sizes&) const = default;
//   };
//
//   class Mine final : public troika::ModelPlugin<Sizes> {
//    public:
//     Mine() : ModelPlugin("mine", {troika::KeysOf<Sizes>::integer<&Sizes::width>(
//                                      "width", {1, 4096}, "of the hidden layer")}) {}
//     troika::SampleSpec sample(const Sizes&) const override {
//       return {.tensors = {{.name = "x", .shape = {20}},
//                           {.name = "targets", .dtype = at::kLong, .shape = {}, .range = 10,
//                            .role = troika::TensorRole::kTarget}}};
//     }
//     std::vector<troika::NamedUnit> units(const Sizes& sizes) const override {
//       const std::int64_t width = sizes.width;
//       return {troika::unit("stem", [=] { return torch::nn::Linear(20, width); }, {width}),
//               troika::unit("head", [=] { return torch::nn::Linear(width, 10); }, {10})};
//     }
//   };
//   TROIKA_MODEL_PLUGIN(Mine)
//
// The library uses the troika of the program that loads it, so it links none: in CMake,
// target_link_libraries(mine PRIVATE troika::plugin).
#pragma once

#include <torch/headeronly/version.h>
#include <troika/base/error.h>
#include <troika/models/plugin/statement.h>
#include <troika/models/row/row_model.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

// A kind of model whose options are a T, which starts with the defaults of its members. Const
// access is thread safe. Any function may throw UsageError, which the user sees with the place in
// the recipe.
template <class T>
class ModelPlugin : public Declared<ModelKind, T> {
 public:
  // Returns the tensors of one sample: at least one input, and one with the role of a target.
  [[nodiscard]] virtual SampleSpec sample(const T& options) const = 0;
  // Returns the row of units; one unit is a whole network. A module draws its initial values when
  // it is made, from torch's generator, which is seeded before.
  [[nodiscard]] virtual std::vector<NamedUnit> units(const T& options) const = 0;
  // Returns the loss. An empty one stands for that of the recipe, [model] loss, which takes the
  // first output of the last unit and the target.
  [[nodiscard]] virtual UnitLoss loss(const T& options) const { return {}; }
  // Throws UsageError where options contradict each other. Each is within its range by then.
  virtual void validate(const T& options) const {}

  void check(const Options& options, const Origins& origins) const final {
    try {
      validate(options.as<T>());
      check_row(row(options));
    } catch (const Error& error) {
      origins.fail({"model.options", "model.library"}, error.what(), error.hint());
    } catch (const std::exception& error) {
      origins.fail({"model.options", "model.library"}, error.what());
    }
  }
  void check_ready(const Options& options, const LossOptions& loss, const Origins&) const final {
    try_row(row(options), loss);
  }
  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind&) const final {
    ModelTraits traits = traits_of_row(row(options));
    traits.own_loss = "the loss of its plug-in alone, without keys of [loss]";
    return traits;
  }
  [[nodiscard]] std::string unit_name(const Options& options, std::int64_t unit) const final {
    return units(options.as<T>()).at(static_cast<std::size_t>(unit)).name;
  }
  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t seed,
                            const ModelLayout& layout) const final {
    return build_row(row(options), loss, seed, layout);
  }

 protected:
  // Takes a name for messages, and the keys of [model.options].
  explicit ModelPlugin(std::string_view name, std::vector<Key> keys = {})
      : Declared<ModelKind, T>(name, std::move(keys)) {}

 private:
  [[nodiscard]] RowModel row(const Options& options) const {
    const T& own = options.as<T>();
    return {sample(own), units(own), loss(own)};
  }
};

}  // namespace troika

// Makes the library a plug-in whose kind is `Kind`, a class with a default constructor. Write it
// once, outside of namespaces.
#define TROIKA_MODEL_PLUGIN(Kind)                                                            \
  extern "C" {                                                                               \
  [[gnu::visibility("default")]] extern const troika::detail::ModelPluginStatement           \
      troika_model_plugin_statement;                                                         \
  [[gnu::used]] constinit const troika::detail::ModelPluginStatement                         \
      troika_model_plugin_statement = troika::detail::model_plugin_statement(TORCH_VERSION); \
  [[gnu::visibility("default")]] const troika::ModelKind* troika_model_plugin() {            \
    static const Kind kKind;                                                                 \
    return &kKind;                                                                           \
  }                                                                                          \
  }
