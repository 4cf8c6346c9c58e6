// How a user's units become stages, and what is refused.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/parallel/pipeline/module_pipeline_setup.h>

#include <limits>
#include <string>
#include <vector>

namespace troika::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<NamedUnit> units_of(const std::vector<double>& costs) {
  std::vector<NamedUnit> units(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    units[i].name = "unit " + std::to_string(i);
    units[i].cost = costs[i];
  }
  return units;
}

ModulePipelineOptions two_stages(std::vector<std::int64_t> by_hand = {}) {
  ModulePipelineOptions options;
  options.pipeline = 2;
  options.virtual_stages = 1;
  options.stage_units = std::move(by_hand);
  return options;
}

std::string refusal(const std::vector<NamedUnit>& units, const ModulePipelineOptions& options) {
  try {
    static_cast<void>(cut_units(units, options));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(CutUnits, AreCutByTheirCosts) {
  EXPECT_THAT(cut_units(units_of({1, 1, 1, 3}), two_stages()), ElementsAre(0, 3, 4));
  EXPECT_THAT(cut_units(units_of({0, 0}), two_stages()), ElementsAre(0, 1, 2));
}

// A stage may be a single unit.
TEST(CutUnits, AreCutByHand) {
  EXPECT_THAT(cut_units(units_of({1, 1, 1, 1}), two_stages({1, 3})), ElementsAre(0, 1, 4));
  EXPECT_THAT(cut_units(units_of({1, 1, 1, 1}), two_stages({3, 1})), ElementsAre(0, 3, 4));
}

TEST(CutUnits, RefuseStagesThatDoNotFit) {
  const auto four = units_of({1, 1, 1, 1});
  for (const std::vector<std::int64_t>& wrong :
       std::vector<std::vector<std::int64_t>>{{4}, {4, 0}, {0, 4}, {5, -1}, {2, 1}, {1, 1, 2}}) {
    EXPECT_THAT(refusal(four, two_stages(wrong)),
                HasSubstr("stage_units must be 2 numbers, each at least 1, that add up to 4"));
  }
  EXPECT_EQ(refusal(units_of({1}), two_stages()), "1 units for 2 stages");
}

// Two that are finite may have a sum that is not.
TEST(CutUnits, RefuseCostsThatAreNone) {
  const double most = std::numeric_limits<double>::max();
  for (const std::vector<double>& costs : std::vector<std::vector<double>>{
           {1, -1}, {1, std::numeric_limits<double>::quiet_NaN()}, {most, most}}) {
    EXPECT_THAT(refusal(units_of(costs), two_stages()), HasSubstr("unit 'unit 1' has a cost of "));
  }
  auto twice = units_of({1, 1});
  twice[1].name = twice[0].name;
  EXPECT_EQ(refusal(twice, two_stages()), "two units are called 'unit 0'");
}

}  // namespace
}  // namespace troika::detail
