#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/base/process_limit.h>

#include <cerrno>

namespace troika {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ProcessLimits : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((root_ / path).parent_path());
    write_file_atomically(root_ / path, content);
  }
  TemporaryFolder root_;
};

TEST_F(ProcessLimits, NoneWithoutControlGroups) {
  EXPECT_FALSE(process_limit(root_.path()));
  EXPECT_THAT(process_limit_hint(root_.path()), HasSubstr("ulimit -u"));
}

TEST_F(ProcessLimits, TheNearestOnTheWayCounts) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/pids.max", "12\n");
  write("sys/fs/cgroup/job/pids.current", "11\n");
  write("sys/fs/cgroup/job/step/pids.max", "max\n");
  write("sys/fs/cgroup/job/step/pids.current", "4\n");
  write("sys/fs/cgroup/pids.max", "11\n");
  write("sys/fs/cgroup/pids.current", "3\n");
  const auto limit = process_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->most, 12U);
  EXPECT_EQ(limit->running, 11U);
  EXPECT_THAT(process_limit_hint(root_.path()),
              HasSubstr("the control group may have 12 processes and threads (pids.max)"));
}

TEST_F(ProcessLimits, VersionOneHasAControllerForIt) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:pids:/a\n");
  write("sys/fs/cgroup/pids/a/pids.max", "20\n");
  write("sys/fs/cgroup/pids/a/pids.current", "20\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/pids.max", "3\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/pids.current", "3\n");
  const auto limit = process_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->most, 20U);
}

TEST_F(ProcessLimits, OnlyAnErrorForWantOfProcessesNamesIt) {
  EXPECT_NO_THROW(check_process_limit(EACCES, "the launcher"));
  try {
    check_process_limit(EAGAIN, "the launcher");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "too many processes and threads: the launcher cannot start another");
    EXPECT_THAT(error.hint(), HasSubstr("fewer ranks"));
  }
}

}  // namespace
}  // namespace troika
