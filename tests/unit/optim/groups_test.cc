// [[optimizer.groups]]: the pattern that counts for a parameter, its rates, and frozen parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/optim/gradient_norm.h>

#include "arena_fixture.h"

namespace troika {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

std::vector<std::string> names_of_specs(const std::vector<ParameterSpec>& specs) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) names.push_back(spec.name);
  return names;
}

std::vector<ParameterSpec> grouped(const std::vector<ParameterGroup>& groups) {
  std::vector<ParameterSpec> specs = mixed_specs();
  apply_groups(groups, names_of_specs(specs), specs);
  return specs;
}

// Values after an update, by name.
std::map<std::string, at::Tensor> updated(const std::vector<ParameterGroup>& groups,
                                          OptimizerOptions options) {
  Arena arena = arena_of(grouped(groups), kFp64);
  give_gradients(arena, 1);
  make_optimizer(options, arena)->step({0.1, 1.0, 1});
  std::map<std::string, at::Tensor> values;
  for (const auto& parameter : arena.parameters()) {
    values[parameter->spec().name] = parameter->master().clone();
  }
  return values;
}

TEST(ParameterGroups, TheFirstPatternThatFitsCounts) {
  const auto specs =
      grouped({{.match = "*.bias", .lr_factor = 3}, {.match = "model.layer.*", .frozen = true}});
  for (const ParameterSpec& spec : specs) {
    EXPECT_EQ(spec.frozen, spec.name == "model.layer.weight") << spec.name;
    EXPECT_EQ(spec.lr_factor, spec.name == "model.layer.bias" ? 3 : 1) << spec.name;
  }
}

TEST(ParameterGroups, RefuseAPatternThatFitsNothing) {
  try {
    (void)grouped({{.match = "*"}, {.match = "layer"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("groups[1]: match = 'layer' fits no parameter"));
  }
}

// Of a weight tied in one rank, and of its replica in another stage of a pipeline.
TEST(ParameterGroups, RefuseATiedWeightOfWhichOneNameIsFrozen) {
  ParameterSpec embed = spec_of("embed.weight", {4, 2}), head = spec_of("head.weight", {4, 2}, 1);
  head.tied_to = embed.name;
  ParameterSpec replica = embed;
  replica.replica_name = head.name;
  const std::vector<std::string> names = {"embed.weight", "head.weight"};
  const auto message_of = [&](std::vector<ParameterSpec> specs,
                              const std::vector<ParameterGroup>& groups) -> std::string {
    try {
      apply_groups(groups, names, specs);
    } catch (const UsageError& error) {
      return error.what();
    }
    return specs.back().frozen ? "frozen" : "trained";
  };
  for (const std::vector<ParameterSpec>& specs : {std::vector{embed, head}, std::vector{replica}}) {
    EXPECT_EQ(message_of(specs, {{.match = "head.*", .frozen = true}}),
              "[optimizer] groups: 'head.weight' and 'embed.weight' are one tied weight, and only "
              "'head.weight' is frozen");
    EXPECT_EQ(message_of(specs, {{.match = "head.*"}, {.match = "*", .frozen = true}}),
              "[optimizer] groups: 'head.weight' and 'embed.weight' are one tied weight, and only "
              "'embed.weight' is frozen");
    EXPECT_EQ(message_of(specs, {{.match = "*", .frozen = true}}), "frozen");
    EXPECT_EQ(message_of(specs, {{.match = "head.*", .lr_factor = 2}}), "trained");
  }
}

TEST(ParameterGroups, SetRatesAndDecayForEveryRule) {
  for (const OptimizerKind* kind : OptimizerKind::all()) {
    SCOPED_TRACE(kind->name());
    OptimizerOptions options = options_of(kind->name());
    options.weight_decay = 0.1;
    const auto plain = updated({}, options);
    const auto grouped = updated({{.match = "model.embed.*", .frozen = true},
                                  {.match = "model.norm.*", .lr_factor = 0},
                                  {.match = "model.layer.weight", .weight_decay = 0.0}},
                                 options);
    const Arena fresh = arena_of(mixed_specs(), kFp64);
    EXPECT_TRUE(
        grouped.at("model.embed.weight").equal(fresh.parameter("model.embed.weight").master()));
    EXPECT_TRUE(
        grouped.at("model.norm.weight").equal(fresh.parameter("model.norm.weight").master()));
    EXPECT_TRUE(grouped.at("model.layer.bias").equal(plain.at("model.layer.bias")));
    options.weight_decay = 0;
    EXPECT_TRUE(
        grouped.at("model.layer.weight").equal(updated({}, options).at("model.layer.weight")));
    EXPECT_FALSE(grouped.at("model.layer.weight").equal(plain.at("model.layer.weight")));
  }
}

TEST(ParameterGroups, FrozenGradientsDoNotCountInTheNorm) {
  Arena arena = arena_of(grouped({{.match = "model.embed.*", .frozen = true}}), kFp64);
  give_gradients(arena, 1);
  double squares = 0;
  for (const auto& parameter : arena.parameters()) {
    if (!parameter->spec().frozen) squares += parameter->gradient().square().sum().item<double>();
  }
  EXPECT_NEAR(global_norm(arena), std::sqrt(squares), 1e-12 * std::sqrt(squares));
}

}  // namespace
}  // namespace troika
