// A row of named units as a model of recipes, and how libraries that hold one are refused.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/loss/expression.h>
#include <troika/model_plugin.h>
#include <troika/models/plugin/library.h>
#include <troika/models/plugin/options.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RowModel small_row() {
  RowModel row;
  row.sample.tensors = {
      {.name = "x", .shape = {4}},
      {.name = "y", .dtype = at::kLong, .shape = {}, .range = 3, .role = TensorRole::kTarget}};
  row.units = {unit("stem", [] { return torch::nn::Linear(4, 5); }, {5}),
               unit("head", [] { return torch::nn::Linear(5, 3); }, {3})};
  return row;
}

std::string refusal(const RowModel& row) {
  try {
    check_row(row);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<at::Tensor> initial_values(const RowModel& row, std::uint64_t seed) {
  const Model model = build_row(row, LossOptions(), seed, {});
  std::vector<at::Tensor> values;
  for (const auto& each : model.units) {
    for (const ParameterSpec& spec : each->specs()) values.push_back(spec.initializer.values);
  }
  return values;
}

TEST(RowModel, SaysWhatIsMissing) {
  EXPECT_EQ(refusal(small_row()), "");
  RowModel row = small_row();
  row.sample.tensors.pop_back();
  EXPECT_EQ(refusal(row), "sample() names no input, or no target");
  row = small_row();
  row.units.clear();
  EXPECT_EQ(refusal(row), "units() gives no unit");
  row = small_row();
  row.units[1].flow.takes = {"skip"};
  EXPECT_EQ(refusal(row),
            "unit 'head' takes 'skip', which neither a unit before it nor the sample has");
}

TEST(RowModel, HasTheTraitsOfItsUnits) {
  RowModel row = small_row();
  ModelTraits traits = traits_of_row(row);
  EXPECT_EQ(traits.units, 2);
  EXPECT_EQ(traits.max_stages, 2);
  EXPECT_EQ(traits.outputs, 3);
  EXPECT_THAT(traits.output_tensors, ElementsAre(TensorSpec{"hidden", at::kFloat, {3}}));
  EXPECT_FALSE(traits.has_own_loss);
  row.loss = [](const at::Tensor& outputs, const at::Tensor&) { return outputs.sum(); };
  EXPECT_TRUE(traits_of_row(row).has_own_loss);
}

// Each unit's draws are its own: they do not depend on what was drawn before, or on other units.
TEST(RowModel, DrawsInitialValuesByTheSeedAndTheUnit) {
  const std::vector<at::Tensor> first = initial_values(small_row(), 7);
  torch::manual_seed(99);
  const at::Tensor next = torch::randn({2});
  torch::manual_seed(99);
  RowModel turned = small_row();
  std::swap(turned.units[0], turned.units[1]);
  const std::vector<at::Tensor> second = initial_values(turned, 7);
  EXPECT_TRUE(torch::randn({2}).equal(next));
  ASSERT_EQ(first.size(), 4U);
  EXPECT_TRUE(first[0].equal(second[2]));
  EXPECT_TRUE(first[3].equal(second[1]));
  EXPECT_FALSE(first[0].equal(initial_values(small_row(), 8)[0]));
}

TEST(RowModel, RefusesFrozenParameters) {
  RowModel row = small_row();
  row.units[0] = unit("stem",
                      [] {
                        torch::nn::Linear made(4, 5);
                        made->bias.requires_grad_(false);
                        return made;
                      },
                      {5});
  try {
    (void)build_row(row, LossOptions(), 1, {});
    FAIL() << "it was built";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "parameter 'stem.bias' requires no gradient");
  }
}

std::string trial_error(const RowModel& row) {
  try {
    check_row(row);
    try_row(row, LossOptions());
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

struct ThrowingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor&) { throw std::runtime_error("not today\nnor tomorrow"); }
};
TORCH_MODULE(Throwing);

TEST(RowModel, IsTriedBeforeARun) {
  RowModel row = small_row();
  torch::manual_seed(99);
  const at::Tensor next = torch::randn({2});
  torch::manual_seed(99);
  EXPECT_EQ(trial_error(row), "");
  EXPECT_TRUE(torch::randn({2}).equal(next));
  row.units[0].flow.gives[0].shape = {4};
  EXPECT_THAT(trial_error(row), HasSubstr("gives [2, 5] as 'hidden', not [2, 4]"));
  row.units[0] = unit("thrower", [] { return Throwing(); }, {5});
  EXPECT_EQ(trial_error(row), "unit 'thrower': forward() throws: not today");
  row.units[1].name = "thrower";
  EXPECT_EQ(trial_error(row), "two units are called 'thrower'");
}

// A plug-in's network takes the loss that a recipe writes where it is one unit.
TEST(RowModel, TakesALossThatTheRecipeWrites) {
  LossOptions loss(expression_kind());
  auto& options = loss.options().as<ExpressionOptions>();
  options.targets = {{"energy", {}}};
  options.quantities = {{"forces", "-derivative(net[:, 0], x)", {4}}};
  options.value = "squared_error(net[:, 0], energy) + forces.square().mean(1)";
  RowModel row = small_row();
  row.units = {unit(
      "net", [] { return torch::nn::Linear(4, 3); }, UnitFlow{{}, {UnitTensor{"net", {3}}}})};
  try_row(row, loss);
  const Model model = build_row(row, loss, 1, {});
  EXPECT_EQ(model.units.size(), 1U);
  const auto refused = [&](const RowModel& given) {
    try {
      try_row(given, loss);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused(small_row()), "loss = \"expression\" is for a network of one unit, not of 2");
  row.loss = [](const at::Tensor& outputs, const at::Tensor&) { return outputs.sum(); };
  EXPECT_EQ(refused(row), "loss = \"expression\": the network has a loss of its own");
}

std::string load_error(const std::string& content) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "libother.so";
  std::ofstream(file, std::ios::binary) << content;
  try {
    (void)load_model_plugin(file);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(ModelPlugin, RefusesLibrariesOfOtherBuildsByWhatTheirFilesState) {
  const auto statement = detail::model_plugin_statement(TORCH_VERSION);
  const std::string own(statement.text.data());
  EXPECT_THAT(load_error("no library"), HasSubstr("is no plug-in for models"));
  EXPECT_THAT(load_error(replaced(own, "troika=0", "troika=9")),
              HasSubstr("was built for troika 9"));
  EXPECT_THAT(load_error(replaced(own, "libtorch=2", "libtorch=1")),
              HasSubstr("was built for LibTorch 1"));
  EXPECT_THAT(load_error(replaced(own, "library=", "library=other-")),
              HasSubstr("was built for the C++ library other-"));
  EXPECT_THAT(load_error(replaced(own, "interface=", "interface=9")),
              HasSubstr("was built for headers of troika with the interface 9"));
  const std::string library = '\0' + std::string("libtroika.so.0") + '\0';
  EXPECT_THAT(load_error(own + library), HasSubstr("links libtroika.so.0"));
  EXPECT_THAT(load_error(own), HasSubstr("cannot load"));
}

}  // namespace
}  // namespace troika
