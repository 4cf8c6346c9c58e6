#include <ATen/ATen.h>
#include <c10/core/impl/alloc_cpu.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <troika/train/tensor_memory.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

namespace troika {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// With its pages in use. Not by LibTorch: its threads do not survive a fork.
at::Tensor bytes_in_use(std::int64_t count) {
  at::Tensor tensor = at::empty({count}, at::kByte);
  std::memset(tensor.mutable_data_ptr(), 1, static_cast<std::size_t>(count));
  return tensor;
}

class ReusedMemory : public testing::Test {
 protected:
  void SetUp() override {
    reuse_tensor_memory();
    bytes_in_use(kMiB);
#ifdef TROIKA_SANITIZED
    GTEST_SKIP() << "memory is not reused under a sanitizer";
#endif
    trim_tensor_memory();
  }
};

std::int64_t live_bytes() {
  return tensor_memory(at::kCPU).live_bytes;
}

TEST_F(ReusedMemory, IsCountedWhileATensorIsAliveAndThenAsCached) {
  const std::int64_t live = live_bytes();
  at::Tensor tensor = at::empty({8 * kMiB + 3}, at::kByte);
  EXPECT_EQ(live_bytes() - live, 8 * kMiB + 3);
  const void* const address = tensor.data_ptr();
  tensor.reset();
  EXPECT_EQ(live_bytes(), live);
  EXPECT_GE(tensor_memory(at::kCPU).cached_bytes, 8 * kMiB);
  EXPECT_EQ(at::empty({8 * kMiB + 3}, at::kByte).data_ptr(), address);
  trim_tensor_memory();
  EXPECT_LT(tensor_memory(at::kCPU).cached_bytes, 8 * kMiB);
}

TEST_F(ReusedMemory, SmallAndEmptyTensorsAreCounted) {
  const std::int64_t live = live_bytes();
  for (const std::int64_t count : {0, 1, 65535, 65536, 65537}) {
    const at::Tensor tensor = at::empty({count}, at::kByte);
    EXPECT_GE(live_bytes() - live, count);
    EXPECT_LT(live_bytes() - live, count + 8192);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0u);
  }
  EXPECT_EQ(live_bytes(), live);
}

// As oneDNN does with what it has from the allocator that was there before.
TEST_F(ReusedMemory, FreesByPointerAloneWhatAnotherAllocatorGaveOut) {
  c10::Allocator* const allocator = c10::GetAllocator(at::kCPU);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
    const std::int64_t live = live_bytes();
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
    EXPECT_EQ(live_bytes(), live);
    allocator->raw_deallocate(c10::alloc_cpu(bytes));
  }
  allocator->raw_deallocate(allocator->raw_allocate(0));
}

TEST_F(ReusedMemory, CountingDoesNotEndReuse) {
  count_tensor_memory(at::kCPU);
  reuse_tensor_memory();
  bytes_in_use(4 * kMiB);
  EXPECT_GE(tensor_memory(at::kCPU).cached_bytes, 4 * kMiB);
}

TEST_F(ReusedMemory, StepsKeepTheirPeak) {
  begin_memory_step();
  bytes_in_use(64 * kMiB);
  end_memory_step();
  EXPECT_GE(tensor_memory(at::kCPU).cached_bytes, 64 * kMiB);
  bytes_in_use(256 * kMiB);  // an evaluation
  begin_memory_step();
  EXPECT_LT(tensor_memory(at::kCPU).cached_bytes, 80 * kMiB);
  bytes_in_use(kMiB);
  end_memory_step();
  EXPECT_LT(tensor_memory(at::kCPU).cached_bytes, 16 * kMiB);
}

TEST_F(ReusedMemory, TooMuchThrowsAsLibTorchDoesAndTrims) {
  bytes_in_use(32 * kMiB);
  const std::int64_t live = live_bytes();
  try {
    at::empty({std::int64_t{1} << 55}, at::kByte);
    FAIL() << "so much there is not";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("can't allocate memory"));
  }
  EXPECT_LT(tensor_memory(at::kCPU).cached_bytes, 8 * kMiB);
  EXPECT_EQ(live_bytes(), live);
}

TEST_F(ReusedMemory, AForkedChildGoesOnWhileOthersAllocate) {
  std::atomic<bool> is_done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!is_done) bytes_in_use(70000);
    });
  }
  const at::Tensor before = bytes_in_use(kMiB);
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that waits for a lock for ever
      const at::Tensor tensor = bytes_in_use(kMiB);
      const auto* const inherited = static_cast<const unsigned char*>(before.data_ptr());
      _exit(inherited[kMiB - 1] == 1 && tensor.data_ptr() != before.data_ptr() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  is_done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ReusedMemory, ShowsReadsOfWhatWasNotWritten) {
  fill_tensor_memory_with_nan(true);
  for (const std::int64_t count : {3, 1 << 20}) {
    EXPECT_TRUE(at::empty({count}, at::kFloat).isnan().all().item<bool>());
    EXPECT_TRUE(at::empty({count}, at::kBFloat16).isnan().all().item<bool>());
    EXPECT_TRUE(at::empty({count}, at::kHalf).isnan().all().item<bool>());
    EXPECT_TRUE(at::empty({count}, at::kDouble).isnan().all().item<bool>());
    EXPECT_TRUE(at::empty({count}, at::kLong).eq(-1).all().item<bool>());
    EXPECT_TRUE(at::zeros({count}, at::kFloat).eq(0).all().item<bool>());
  }
  at::Tensor tensor = at::ones({1 << 20}, at::kFloat);
  const auto* const gone = static_cast<const float*>(tensor.data_ptr());
  tensor.reset();
  EXPECT_TRUE(std::isnan(gone[77]));  // the heap has not given it back
  fill_tensor_memory_with_nan(false);
}

}  // namespace
}  // namespace troika
