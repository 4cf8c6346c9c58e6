#include <gmock/gmock.h>
#include <sched.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/observe/machine.h>

#include <thread>

namespace troika {
namespace {

namespace fs = std::filesystem;

// A folder that looks like the / of a machine.
class FakeRoot {
 public:
  FakeRoot& with(const std::string& path, const std::string& content) {
    fs::create_directories((folder_ / path).parent_path());
    write_file_atomically(folder_ / path, content);
    return *this;
  }
  [[nodiscard]] const fs::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(CgroupLimits, NoneWithoutControlGroups) {
  const FakeRoot root;
  EXPECT_FALSE(cgroup_limits(root.path()).cores);
  EXPECT_FALSE(cgroup_limits(root.path()).memory_bytes);
}

TEST(CgroupLimits, VersionTwoTakesTheTightestOnTheWay) {
  FakeRoot root;
  root.with("proc/self/cgroup", "0::/job/step\n")
      .with("sys/fs/cgroup/cpu.max", "max 100000\n")
      .with("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
      .with("sys/fs/cgroup/job/step/cpu.max", "400000 100000\n")
      .with("sys/fs/cgroup/job/memory.max", "max\n")
      .with("sys/fs/cgroup/job/step/memory.max", "1073741824\n");
  const CgroupLimits limits = cgroup_limits(root.path());
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1u << 30);
}

TEST(CgroupLimits, VersionOneInAContainer) {
  FakeRoot root;
  // The path is the host's; the container sees its group as the root of the mount.
  root.with("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
      .with("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
      .with("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
      .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const CgroupLimits limits = cgroup_limits(root.path());
  EXPECT_EQ(limits.cores, 2.5);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST(CgroupLimits, VersionOneWithoutQuota) {
  FakeRoot root;
  root.with("proc/self/cgroup", "3:cpu:/\n4:memory:/group\n")
      .with("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
      .with("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
      .with("sys/fs/cgroup/memory/group/memory.limit_in_bytes", "4096\n");
  const CgroupLimits limits = cgroup_limits(root.path());
  EXPECT_FALSE(limits.cores);
  EXPECT_EQ(limits.memory_bytes, 4096u);
}

TEST(AvailableMemory, IsWhatTheMachineAndEachGroupHaveLeft) {
  FakeRoot root;
  EXPECT_FALSE(available_memory(root.path()));
  root.with("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 4000 kB\nSwapFree: 1000 kB\n");
  EXPECT_EQ(available_memory(root.path()), 5000u << 10);
  root.with("proc/self/cgroup", "0::/job/step\n")
      .with("sys/fs/cgroup/job/memory.max", "4096000\n")
      .with("sys/fs/cgroup/job/memory.current", "3072000\n")
      .with("sys/fs/cgroup/job/memory.stat",
            "anon 7\ninactive_file 1000\nactive_file 300\nslab_reclaimable 20\n")
      .with("sys/fs/cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(available_memory(root.path()), 4096000u - 3072000u + 1320u);
}

TEST(AvailableMemory, OfVersionOne) {
  FakeRoot root;
  root.with("proc/self/cgroup", "4:memory:/group\n")
      .with("sys/fs/cgroup/memory/group/memory.limit_in_bytes", "4096\n")
      .with("sys/fs/cgroup/memory/group/memory.usage_in_bytes", "5000\n")
      .with("sys/fs/cgroup/memory/group/memory.stat", "total_inactive_file 100\n");
  EXPECT_EQ(available_memory(root.path()), 0u);
}

TEST(CgroupLimits, PathsOutsideAreNotFollowed) {
  FakeRoot root;
  root.with("proc/self/cgroup", "0::/../outside\nnonsense\n")
      .with("sys/fs/outside/cpu.max", "1 100000\n")
      .with("sys/fs/cgroup/cpu.max", "100000 0\n");  // no period: no limit
  EXPECT_FALSE(cgroup_limits(root.path()).cores);
}

TEST(MachineFacts, ReadsTheMachine) {
  FakeRoot root;
  root.with("proc/meminfo", "MemTotal:       2048 kB\nMemFree:        1 kB\n")
      .with("proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Test CPU @ 2 GHz\n"
            "flags\t\t: fpu avx2 avx512f avx512_bf16x amx_bf16\n\nprocessor\t: 1\n"
            "flags\t\t: avx512_bf16\n")
      .with("proc/self/cgroup", "0::/\n")
      .with("sys/fs/cgroup/cpu.max", "50000 100000\n")
      .with("sys/fs/cgroup/memory.max", "1048576\n");
  const MachineFacts facts = machine_facts(root.path());
  EXPECT_EQ(facts.cpu_model, "Test CPU @ 2 GHz");
  EXPECT_EQ(facts.memory_bytes, 2u << 20);
  EXPECT_EQ(facts.usable_memory_bytes, 1u << 20);
  EXPECT_EQ(facts.usable_cores, 1);  // half a core is still one
  EXPECT_TRUE(facts.avx2);
  EXPECT_TRUE(facts.avx512f);
  EXPECT_TRUE(facts.amx_bf16);
  EXPECT_FALSE(facts.avx512_bf16);
}

TEST(MachineFacts, OfThisMachine) {
  const MachineFacts facts = machine_facts();
  EXPECT_EQ(facts.host, host_name());
  EXPECT_FALSE(facts.host.empty());
  EXPECT_GE(facts.usable_cores, 1);
  EXPECT_LE(facts.usable_cores, facts.cores);
  EXPECT_GT(facts.usable_memory_bytes, 1u << 20);
  EXPECT_LE(facts.usable_memory_bytes, facts.memory_bytes);
}

TEST(GpuDevices, AreThoseOfTheDriverThatAreVisible) {
  const FakeRoot empty;
  EXPECT_EQ(count_gpu_devices(empty.path()), 0);
  FakeRoot root;  // of a container that has two of the host's
  root.with("dev/nvidia1", "").with("dev/nvidia10", "").with("dev/nvidiactl", "");
  root.with("dev/nvidia-uvm", "");
  const auto count_with = [&](const char* visible) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const int count = count_gpu_devices(root.path());
    unsetenv("CUDA_VISIBLE_DEVICES");
    return count;
  };
  EXPECT_EQ(count_gpu_devices(root.path()), 2);
  EXPECT_EQ(count_with("0,1,2"), 2);
  EXPECT_EQ(count_with("GPU-5c8b"), 1);
  EXPECT_EQ(count_with("1,-1,0"), 1);
  EXPECT_EQ(count_with(""), 0);
}

TEST(UsableCores, CountsAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  // In a thread of its own, so that the other tests keep all cores.
  std::thread([first] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_cores(), 1);
    EXPECT_EQ(machine_facts().cores, 1);
  }).join();
}

}  // namespace
}  // namespace troika
