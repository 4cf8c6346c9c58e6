#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/train/memory_pressure.h>

#include <filesystem>
#include <string>

namespace troika {
namespace {

void write(const TemporaryFolder& root, const std::string& path, const std::string& text) {
  std::filesystem::create_directories((root / path).parent_path());
  write_file_atomically(root / path, text);
}

TEST(MemoryPressure, IsLessThanATenthOfTheLimitOfVersionTwo) {
  const TemporaryFolder root;
  EXPECT_FALSE(is_memory_scarce(root.path()));
  write(root, "proc/self/cgroup", "0::/job\n");
  write(root, "sys/fs/cgroup/job/memory.max", "max\n");
  write(root, "sys/fs/cgroup/job/memory.current", "1000000\n");
  EXPECT_FALSE(is_memory_scarce(root.path()));
  write(root, "sys/fs/cgroup/job/memory.max", "1000000\n");
  EXPECT_TRUE(is_memory_scarce(root.path()));
  write(root, "sys/fs/cgroup/job/memory.current", "900001\n");
  EXPECT_TRUE(is_memory_scarce(root.path()));
  write(root, "sys/fs/cgroup/job/memory.current", "900000\n");
  EXPECT_FALSE(is_memory_scarce(root.path()));
  // Files that the kernel would drop are no use of memory.
  write(root, "sys/fs/cgroup/job/memory.current", "950000\n");
  EXPECT_TRUE(is_memory_scarce(root.path()));
  write(root, "sys/fs/cgroup/job/memory.stat", "inactive_file 60000\n");
  EXPECT_FALSE(is_memory_scarce(root.path()));
}

TEST(MemoryPressure, IsLessThanATenthOfTheLimitOfVersionOne) {
  const TemporaryFolder root;
  write(root, "proc/self/cgroup", "4:memory:/group\n");
  write(root, "sys/fs/cgroup/memory/group/memory.limit_in_bytes", "1000000\n");
  write(root, "sys/fs/cgroup/memory/group/memory.usage_in_bytes", "850000\n");
  EXPECT_FALSE(is_memory_scarce(root.path()));
  write(root, "sys/fs/cgroup/memory/group/memory.usage_in_bytes", "950000\n");
  EXPECT_TRUE(is_memory_scarce(root.path()));
}

}  // namespace
}  // namespace troika
