#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/ready_gradients.h>

namespace troika::detail {
namespace {

TEST(ReadyGradients, TakesTheOrderOfAPassWithTheOthersAtItsEnd) {
  ReadyGradients ready(4, ReadyGradients::Order::kObserved);
  ready.begin();
  EXPECT_TRUE(ready.add(3));
  ready.begin();
  EXPECT_FALSE(ready.contains(3));
  EXPECT_TRUE(ready.add(2));
  EXPECT_TRUE(ready.add(0));
  EXPECT_FALSE(ready.add(2));
  EXPECT_TRUE(ready.contains(2));
  ASSERT_TRUE(ready.has_order());
  EXPECT_THAT(ready.take_order(Session::on(Group())), testing::ElementsAre(2, 0, 3, 1));
  EXPECT_FALSE(ready.has_order());
}

TEST(ReadyGradients, HasNoOrderWhereBucketsStayAsTheyAre) {
  ReadyGradients ready(4, ReadyGradients::Order::kFixed);
  ready.begin();
  EXPECT_TRUE(ready.add(3));
  EXPECT_FALSE(ready.has_order());
}

}  // namespace
}  // namespace troika::detail
