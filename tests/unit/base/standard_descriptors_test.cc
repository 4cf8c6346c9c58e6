#include <fcntl.h>
#include <gtest/gtest.h>
#include <troika/base/standard_descriptors.h>
#include <unistd.h>

namespace troika {
namespace {

// What becomes of them in a process that starts without some of them.
int exit_status_without(std::initializer_list<int> numbers) {
  for (const int number : numbers) close(number);
  open_standard_descriptors();
  char byte = 0;
  for (const int number : numbers) {
    if (fcntl(number, F_GETFD) != 0) return 1;  // open, also in programs that are started
    if (number == 0 && read(number, &byte, 1) != 0) return 2;
    if (number > 0 && write(number, "x", 1) != -1) return 3;
  }
  return open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : 4;
}

TEST(StandardDescriptorsDeathTest, AreOpenedWhereTheyAreClosed) {
  EXPECT_EXIT(_exit(exit_status_without({0, 1, 2})), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(_exit(exit_status_without({1})), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(_exit(exit_status_without({0, 2})), ::testing::ExitedWithCode(0), "");
}

TEST(StandardDescriptors, StayAsTheyAreWhereTheyAreOpen) {
  const int before = fcntl(STDERR_FILENO, F_GETFL);
  open_standard_descriptors();
  EXPECT_EQ(fcntl(STDERR_FILENO, F_GETFL), before);
}

}  // namespace
}  // namespace troika
