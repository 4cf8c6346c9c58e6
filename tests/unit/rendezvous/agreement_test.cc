#include <gtest/gtest.h>
#include <troika/rendezvous/agreement.h>

namespace troika {
namespace {

TEST(Agreement, ListsRanks) {
  EXPECT_EQ(list_ranks({2}), "2");
  EXPECT_EQ(list_ranks({1, 2}), "1 and 2");
  EXPECT_EQ(list_ranks({1, 2, 7}), "1, 2 and 7");
  EXPECT_EQ(list_ranks({1, 2, 3, 4, 9}), "1 to 4 and 9");
  EXPECT_EQ(list_ranks({0, 4, 5, 6, 7}), "0 and 4 to 7");
}

constexpr std::string_view kRecipe =
    "name = \"a\"\n[train]\nsteps = 10\nseed = 1\n[optimizer]\nlr = 0.1\n";

TEST(Agreement, EqualRecipesDoNotDiffer) {
  EXPECT_EQ(first_difference(kRecipe, kRecipe, "on rank 0", "on rank 1"), "");
}

TEST(Agreement, NamesTheFirstKeyWithItsTable) {
  EXPECT_EQ(first_difference(kRecipe, "name = \"a\"\n[train]\nsteps = 20\nseed = 2\n", "on rank 0",
                             "on rank 3"),
            "train.steps is 10 on rank 0 and 20 on rank 3");
  EXPECT_EQ(first_difference(kRecipe, "name = \"b\"\n", "on rank 0", "on rank 1"),
            "name is \"a\" on rank 0 and \"b\" on rank 1");
}

TEST(Agreement, NamesAKeyThatOnlyOneHas) {
  EXPECT_EQ(first_difference(kRecipe, "name = \"a\"\n[train]\nseed = 1\n[optimizer]\nlr = 0.1\n",
                             "on rank 0", "on rank 1"),
            "train.steps is set on rank 0, but not on rank 1");
  EXPECT_EQ(first_difference("[train]\nseed = 1\n", "[train]\nsteps = 10\nseed = 1\n", "on rank 0",
                             "on rank 2"),
            "train.steps is set on rank 2, but not on rank 0");
  EXPECT_EQ(first_difference("a = 1\nb = 2\n", "a = 1\n", "on rank 0", "on rank 1"),
            "b is set on rank 0, but not on rank 1");
}

}  // namespace
}  // namespace troika
