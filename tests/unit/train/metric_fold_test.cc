// The metrics of an evaluation, and those of each value where values have names.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/metric_fold.h>

#include <cmath>

namespace troika {
namespace {

using ::testing::ElementsAre;

// Data of a table whose labels have these names. It gives no samples.
class NamedTargets final : public Dataset {
 public:
  explicit NamedTargets(std::vector<std::string> names) : names_(std::move(names)) {}
  [[nodiscard]] std::int64_t samples(Split) const override { return 0; }
  [[nodiscard]] SampleRef at(Split, std::int64_t) const override { return {}; }
  [[nodiscard]] Microbatch microbatch(Split, std::span<const SampleRef>,
                                      std::int64_t) const override {
    return {};
  }
  [[nodiscard]] std::string fingerprint() const override { return ""; }
  [[nodiscard]] std::optional<double> bytes_per_token() const override { return {}; }
  [[nodiscard]] DatasetFacts facts() const override { return {}; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  [[nodiscard]] std::vector<std::string> target_names() const override { return names_; }

 private:
  std::vector<std::string> names_, warnings_;
};

std::vector<NamedValue> values_of(const std::vector<std::string>& names, const at::Tensor& errors) {
  const Recipe recipe = parse_recipe(R"(
name = "r"
[model]
kind = "mlp"
loss = "mean_square"
input_dim = 3
hidden_dims = []
output_dim = 2
[data]
kind = "random"
[train]
steps = 1
global_batch_size = 1
micro_batch_size = 1
metrics = ["rmse"]
)",
                                     "recipe.toml")
                            .recipe;
  MetricFold metrics(recipe, NamedTargets(names));
  metrics.add(errors, at::zeros_like(errors));
  metrics.add(errors, at::zeros_like(errors));
  return metrics.values(Group(), 0, {"test", Deadline::in(Seconds(60))});
}

std::vector<std::string> names_of(const std::vector<NamedValue>& values) {
  std::vector<std::string> names;
  for (const NamedValue& each : values) names.push_back(each.name);
  return names;
}

TEST(MetricFold, JudgesValuesWithNamesOneByOne) {
  const at::Tensor errors = at::tensor({3.0, 300.0, 4.0, 400.0}).view({2, 2});
  const std::vector<NamedValue> found = values_of({"rooms", "price"}, errors);
  ASSERT_THAT(names_of(found), ElementsAre("rmse", "rmse_rooms", "rmse_price"));
  EXPECT_NEAR(found[0].value, std::sqrt(12.5 * 10001 / 2), 1e-9);
  EXPECT_NEAR(found[1].value, std::sqrt(12.5), 1e-12);
  EXPECT_NEAR(found[2].value, std::sqrt(125000.0), 1e-9);
  EXPECT_THAT(names_of(values_of({}, errors)), ElementsAre("rmse"));
  EXPECT_THAT(names_of(values_of({"price"}, errors)), ElementsAre("rmse"));
}

}  // namespace
}  // namespace troika
