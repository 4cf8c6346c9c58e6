// The program of the launcher's tests: a gtest binary that also plays the roles of ranks (roles.h).
#include "roles.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "rank") {
    return troika::testing::play_rank(arguments[1]);
  }
  if (arguments.size() >= 2 && arguments[0] == "launch") {
    return troika::testing::play_launcher({arguments.begin() + 1, arguments.end()});
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
