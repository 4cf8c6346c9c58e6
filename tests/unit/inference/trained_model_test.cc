#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/plugin_folder.h>
#include <troika/checkpoint/tensors.h>
#include <troika/data/arrow/plugin.h>
#include <troika/inference/predict.h>

#include <string>
#include <vector>

namespace troika {
namespace {

using ::testing::HasSubstr;

// What a run on a table leaves behind. The table itself is gone.
class TrainedOnATable : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file_atomically(run_ / "recipe.toml", R"(
name = "small"
[model]
kind = "mlp"
input_dim = 2
hidden_dims = []
output_dim = 2
[data]
kind = "table"
files = ["gone.csv"]
[data.columns]
a = { as = "number", normalise = "standard" }
b = { as = "number" }
y = { as = "label" }
[train]
precision = "fp64"
)");
    write_file_atomically(run_ / "data.json", R"({"tensors": [], "columns": [
{"name": "a", "type": "double", "values": "number", "as": "number", "into": "features",
 "missing": "error", "normalise": "standard", "shift": 10.0, "scale": 0.5},
{"name": "b", "type": "double", "values": "number", "as": "number", "into": "features",
 "missing": "error"},
{"name": "y", "type": "string", "values": "text", "as": "label", "into": "targets",
 "missing": "error", "words": ["no", "yes"], "classes": 2}]})");
    const std::vector<NamedTensor> model = {
        {"layers.0.weight", at::tensor({1.0, 0.0, 0.0, 1.0}, at::kDouble).view({2, 2})},
        {"layers.0.bias", at::zeros({2}, at::kDouble)}};
    save_tensors(run_ / "model.safetensors", model);
  }

  TemporaryFolder run_;
};

TEST_F(TrainedOnATable, GivesOutputsForTensors) {
  const TrainedModel model = load_model(run_.path());
  const at::Tensor inputs = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2});
  EXPECT_TRUE(at::equal(model({{"features", inputs}}), inputs));
  EXPECT_THROW((void)model({{"features", inputs.view({1, 4})}}), UsageError);
}

TEST_F(TrainedOnATable, KeepsThePrecisionOfInputs) {
  const TrainedModel model = load_model(run_.path());
  const at::Tensor inputs = at::tensor({1.0 / 3, 2.0 / 3}, at::kDouble).view({1, 2});
  EXPECT_TRUE(at::equal(model({{"features", inputs}}), inputs));
}

TEST_F(TrainedOnATable, GivesNothingForNoSamples) {
  const TrainedModel model = load_model(run_.path());
  const at::Tensor outputs = model({{"features", at::empty({0, 2}, at::kDouble)}});
  EXPECT_EQ(outputs.sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(outputs.scalar_type(), at::kDouble);
}

TEST_F(TrainedOnATable, GivesItsOutputsByName) {
  const TrainedModel model = load_model(run_.path());
  const at::Tensor inputs = at::ones({1, 2}, at::kDouble);
  const TensorMap outputs = model.outputs({{"features", inputs}});
  ASSERT_EQ(outputs.size(), 1);
  EXPECT_TRUE(at::equal(outputs[0], inputs));
}

TEST_F(TrainedOnATable, RefusesAnInputThatItDoesNotTake) {
  const TrainedModel model = load_model(run_.path());
  const at::Tensor inputs = at::ones({1, 2});
  try {
    (void)model({{"features", inputs}, {"feature", inputs}});
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "the model takes no input 'feature'; did you mean 'features'?");
  }
}

TEST_F(TrainedOnATable, PredictsForOtherTables) {
  if (!detail::find_plugin(arrow_plugin::kFile)) GTEST_SKIP() << "built with TROIKA_ARROW=0";
  write_file_atomically(run_ / "new.csv", "b,other,a\n3.5,x,11\n-1,y,14\n");
  PredictOptions options;
  options.run = run_.path();
  options.samples.files = {run_ / "new.csv"};
  EXPECT_EQ(predict(options, run_ / "out.csv").rows, 2);
  const std::string text = read_file(run_ / "out.csv", 1000);
  EXPECT_THAT(text, HasSubstr("row,class,probability_no,probability_yes\n0,yes,"));
  EXPECT_THAT(text, HasSubstr("\n1,no,"));
}

}  // namespace
}  // namespace troika
