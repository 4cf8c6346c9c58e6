#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/unused_parameters.h>

#include <ATen/ATen.h>

namespace troika::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Policy = UnusedParameters::Policy;

std::vector<GradientSlot> many_slots(int count) {
  std::vector<NamedTensor> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.push_back({"p" + std::to_string(i), at::ones({1}).requires_grad_(true)});
  }
  return make_slots(parameters);
}

TEST(UnusedParameters, AreNamedWhereTheyAreRefused) {
  const auto slots = many_slots(10);
  UnusedParameters unused(slots, Session::on(Group()), Policy::kRefuse);
  EXPECT_FALSE(unused.are_refused());
  EXPECT_EQ(unused.validate().text, "");
  unused.add(3);
  EXPECT_TRUE(unused.are_refused());
  EXPECT_EQ(unused.validate().text, "parameter 'p3' got no gradient in the backward pass");
  unused.clear();
  for (std::size_t i = 0; i < 10; ++i) unused.add(i);
  EXPECT_THAT(unused.validate().text, HasSubstr("parameters 'p0', 'p1', "));
  EXPECT_THAT(unused.validate().text, HasSubstr("'p7' and 2 others got no gradient"));
  unused.start_count(true);
  EXPECT_TRUE(unused.users().empty());
}

TEST(UnusedParameters, AreCountedWhereTheyAreAllowed) {
  const auto slots = many_slots(3);
  UnusedParameters unused(slots, Session::on(Group()), Policy::kAllow);
  unused.add(1);
  EXPECT_FALSE(unused.are_refused());
  unused.start_count(true);
  unused.wait_for_count();
  const auto counted = [&] {
    return std::vector<int>(unused.users().begin(), unused.users().end());
  };
  EXPECT_THAT(counted(), ElementsAre(1, 0, 1));
  unused.start_count(false);
  unused.wait_for_count();
  EXPECT_THAT(counted(), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace troika::detail
