// What planners are told of a model before it is built is true of the model that is built.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/models/torchscript/options.h>

#include "support/script_file.h"
#include "support/temporary_folder.h"

namespace troika {
namespace {

using ::testing::ElementsAre;

ModelOptions small(const ModelKind& kind) {
  ModelOptions model(kind);
  if (&kind == &gpt_kind()) model.as<GptOptions>().layers = 3;
  if (&kind == &mlp_kind()) {
    model.as<MlpOptions>() = {5, {7, 6}, 4, ActivationFunction::kTanh};
    model.loss = LossOptions(mean_square_kind());
  }
  if (&kind == &torchscript_kind()) {
    static const TemporaryFolder kFolder;
    test::write_script(kFolder.path() / "net.pt");
    auto& script = model.as<TorchscriptOptions>();
    script.path = (kFolder.path() / "net.pt").string();
    script.inputs = {{"x", {6}}};
    script.targets = {{"y", {}, ScriptDtype::kInt64, 3}};
  }
  return model;
}

TEST(ModelKind, BuildsWhatItsTraitsSay) {
  const std::vector<std::string_view> kinds_of_files = {"exported", "torchscript", "plugin"};
  for (const ModelKind* kind : ModelKind::all()) {
    if (std::ranges::count(kinds_of_files, kind->name()) > 0) continue;
    const ModelOptions options = small(*kind);
    const ModelTraits traits = traits_of(options);
    const Model model = build_model(options, 1);
    EXPECT_EQ(std::ssize(model.units), traits.units) << kind->name();
    EXPECT_EQ(model.facts.unit_flops.size(), model.units.size()) << kind->name();
    EXPECT_EQ(model.facts.targets_per_sample, traits.sample.targets_per_sample) << kind->name();
    EXPECT_LE(traits.max_stages, traits.units) << kind->name();
  }
}

TEST(ModelKind, DescribesItsSamples) {
  const SampleSpec tokens = traits_of(small(gpt_kind())).sample;
  EXPECT_TRUE(tokens.is_language());
  EXPECT_THAT(tokens.input().shape, ElementsAre(256));
  EXPECT_EQ(tokens.target().range, 256);
  ModelOptions perceptron = small(mlp_kind());
  const SampleSpec values = traits_of(perceptron).sample;
  EXPECT_FALSE(values.is_language());
  EXPECT_THAT(values.input().shape, ElementsAre(5));
  EXPECT_THAT(values.target().shape, ElementsAre(4));
  perceptron.loss = LossOptions(cross_entropy_kind());
  const SampleSpec classes = traits_of(perceptron).sample;
  EXPECT_EQ(classes.target().dtype, at::kLong);
  EXPECT_EQ(classes.target().range, 4);
  EXPECT_TRUE(classes.target().shape.empty());
}

TEST(ModelKind, SaysWhatItGivesAndWhichFilesItIsMadeOf) {
  const auto gives = [](const ModelOptions& model, const char* name,
                        const std::vector<std::int64_t>& shape) {
    const TensorSpec first = traits_of(model).output_tensors.at(0);
    EXPECT_EQ(first.name, name);
    EXPECT_EQ(first.dtype, at::kFloat);
    EXPECT_EQ(first.shape, shape);
  };
  gives(small(mlp_kind()), "outputs", {4});
  EXPECT_TRUE(traits_of(small(gpt_kind())).output_tensors.empty());
  ModelOptions script = small(torchscript_kind());
  gives(script, "outputs", {3});
  auto& options = script.as<TorchscriptOptions>();
  options.outputs = {{"score", {}}, {"class", {2}, ScriptDtype::kInt64}};
  gives(script, "score", {});
  EXPECT_EQ(traits_of(script).output_tensors.at(1).dtype, at::kLong);
  EXPECT_THAT(script.kind().files(script.options()), ElementsAre(options.path));
  options.evaluation_path = "eval.pt";
  EXPECT_THAT(script.kind().files(script.options()), ElementsAre(options.path, "eval.pt"));
  EXPECT_TRUE(mlp_kind().files(small(mlp_kind()).options()).empty());
}

TEST(ModelKind, NamesItsUnits) {
  const auto names = [](const ModelOptions& model) {
    std::vector<std::string> found;
    for (std::int64_t unit = 0; unit < traits_of(model).units; ++unit) {
      found.push_back(model.kind().unit_name(model.options(), unit));
    }
    return found;
  };
  EXPECT_THAT(names(small(gpt_kind())),
              ElementsAre("embedding", "layer 0", "layer 1", "layer 2", "head"));
  EXPECT_THAT(names(small(mlp_kind())), ElementsAre("layer 0", "layer 1", "layer 2"));
}

// Options of one kind never pass for those of another.
TEST(ModelKind, RefusesOptionsOfAnother) {
  EXPECT_THROW((void)small(mlp_kind()).as<GptOptions>(), InternalError);
  EXPECT_THROW((void)mlp_kind().traits(gpt_kind().defaults(), cross_entropy_kind()), InternalError);
  EXPECT_THROW((void)ModelOptions::named("rnn"), InternalError);
}

}  // namespace
}  // namespace troika
