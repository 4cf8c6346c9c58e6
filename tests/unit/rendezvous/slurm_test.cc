#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/rendezvous/slurm.h>

namespace troika {
namespace {

TEST(Slurm, FirstHost) {
  const std::pair<const char*, const char*> cases[] = {
      {"n1", "n1"},
      {"n[1-3,7]", "n1"},
      {"n[7,1-3],m2", "n7"},
      {"gpu05,gpu06", "gpu05"},
      {"node[001-128]", "node001"},
      {"rack[01-02]-n[3-4].cluster", "rack01-n3.cluster"},
  };
  for (const auto& [list, host] : cases) EXPECT_EQ(first_host(list, "LIST"), host) << list;
}

TEST(Slurm, MalformedListsNameTheVariable) {
  for (const char* list : {"", ",n1", "n[1-3", "n[]", "n[-3]", "n[a-b]"}) {
    try {
      (void)first_host(list, "LIST");
      ADD_FAILURE() << list;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("LIST=")) << list;
    }
  }
}

TEST(Slurm, TasksOfNode) {
  EXPECT_EQ(tasks_of_node("4", 0, "TASKS"), 4);
  EXPECT_EQ(tasks_of_node("2(x3),1", 0, "TASKS"), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2, "TASKS"), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3, "TASKS"), 1);
  EXPECT_EQ(tasks_of_node("2(x3),1", 4, "TASKS"), std::nullopt);
  for (const char* list : {"a", "2(x)", "2(3)", "2(x3", "2;1", "0"}) {
    EXPECT_THROW((void)tasks_of_node(list, 0, "TASKS"), UsageError) << list;
  }
}

}  // namespace
}  // namespace troika
