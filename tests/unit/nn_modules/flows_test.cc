// Which tensors cross the cuts of a row of units.
#include <gmock/gmock.h>
#include <troika/nn/named_unit.h>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NamedUnit unit_of(UnitFlow flow) {
  return {"unit", {}, std::move(flow)};
}

std::vector<std::string> names(const std::vector<UnitTensor>& tensors) {
  std::vector<std::string> found;
  for (const UnitTensor& each : tensors) found.push_back(each.name);
  return found;
}

TEST(Flows, OneTensorFlowsFromUnitToUnit) {
  const std::vector<NamedUnit> row = {unit_of({{}, {{"hidden", {4}}}}),
                                      unit_of({{}, {{"hidden", {5}}}}),
                                      unit_of({{}, {{"logits", {2}}}})};
  const auto flows = flows_of(row);
  EXPECT_THAT(flows[0], IsEmpty());
  EXPECT_THAT(flows[1], ElementsAre(UnitTensor{"hidden", {4}}));
  EXPECT_THAT(flows[2], ElementsAre(UnitTensor{"hidden", {5}}));
  EXPECT_THAT(flows[3], ElementsAre(UnitTensor{"logits", {2}}));
}

// "skip" passes the middle; "spare" is taken by no unit, "scale" is of the batch.
TEST(Flows, WhatALaterUnitTakesPassesThoseBetween) {
  const std::vector<NamedUnit> row = {
      unit_of({{"images"}, {{"hidden", {4}}, {"skip", {8}}, {"spare", {1}}}}),
      unit_of({{"hidden"}, {{"hidden", {2}}}}), unit_of({{"hidden"}, {{"hidden", {3}}}}),
      unit_of({{"hidden", "skip", "scale"}, {{"hidden", {9}}}})};
  const auto flows = flows_of(row);
  EXPECT_THAT(names(flows[1]), ElementsAre("hidden", "skip"));
  EXPECT_THAT(flows[2], ElementsAre(UnitTensor{"skip", {8}}, UnitTensor{"hidden", {2}}));
  EXPECT_THAT(flows[3], ElementsAre(UnitTensor{"skip", {8}}, UnitTensor{"hidden", {3}}));
}

// A name that is given again ends the first one's way.
TEST(Flows, TheLastGiverCounts) {
  const std::vector<NamedUnit> row = {unit_of({{}, {{"a", {1}}, {"b", {1}}}}),
                                      unit_of({{"b"}, {{"a", {2}}}}),
                                      unit_of({{"a"}, {{"out", {1}}}})};
  const auto flows = flows_of(row);
  EXPECT_THAT(names(flows[1]), ElementsAre("b"));
  EXPECT_THAT(flows[2], ElementsAre(UnitTensor{"a", {2}}));
}

TEST(Flows, AUnitGivesSomethingAndEachNameOnce) {
  EXPECT_THROW((void)flows_of(std::vector<NamedUnit>{unit_of({{}, {}})}), UsageError);
  EXPECT_THROW((void)flows_of(std::vector<NamedUnit>{unit_of({{}, {{"a", {1}}, {"a", {2}}}})}),
               UsageError);
}

}  // namespace
}  // namespace troika
