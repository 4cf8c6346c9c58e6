#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/device/device_error.h>
#include <troika/device/out_of_memory.h>

#include <optional>

namespace troika {
namespace {

// As LibTorch's allocator for CUDA words it.
c10::OutOfMemoryError error_of_cuda() {
  return {{"allocate", "CUDACachingAllocator.cpp", 1},
          "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 "
          "GiB of which 1.50 GiB is free. Of the allocated memory 70.00 GiB is allocated by "
          "PyTorch."};
}

TEST(OutOfMemory, SaysWhereTheMemoryIs) {
  DeviceFacts facts;
  facts.device = "cuda:0";
  facts.total_bytes = std::uint64_t{80} << 30;
  facts.free_bytes = std::uint64_t{3} << 29;
  facts.allocator = {std::uint64_t{70} << 30, std::uint64_t{8} << 30};
  const Error error = out_of_memory(error_of_cuda(), facts);
  EXPECT_STREQ(error.what(),
               "cuda:0 is out of memory: 20.00 GiB were asked for; tensors hold 70.0 GiB, the "
               "allocator keeps 8.0 GiB, 1.5 GiB of 80.0 GiB are free");
  EXPECT_NE(error.hint().find("train.micro_batch_size"), std::string::npos);
  EXPECT_EQ(error.code(), ExitCode::kInternal);
  EXPECT_TRUE(is_out_of_memory("rank 1 (host a, pid 7): " + std::string(error.what())));
  EXPECT_FALSE(is_out_of_memory("cuda:0 has failed: no memory"));
}

TEST(OutOfMemory, LeavesOutWhatIsNotKnown) {
  DeviceFacts facts;
  facts.device = "xpu:1";
  EXPECT_STREQ(out_of_memory(c10::OutOfMemoryError({"f", "f.cc", 1}, "no more"), facts).what(),
               "xpu:1 is out of memory");
  facts.total_bytes = std::uint64_t{2} << 30;
  EXPECT_STREQ(out_of_memory(c10::OutOfMemoryError({"f", "f.cc", 1}, "no more"), facts).what(),
               "xpu:1 is out of memory: 0 B of 2.0 GiB are free");
}

std::optional<Error> shown(const c10::Error& error) {
  return device_error(error, at::Device(at::kCUDA, 1));
}

TEST(DeviceError, NamesADeviceThatHasFailed) {
  const auto error = shown(c10::AcceleratorError(
      {"f", "f.cc", 1}, 700,
      "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
      "asynchronously reported at some other API call"));
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(), "cuda:1 has failed: an illegal memory access was encountered");
  EXPECT_NE(error->hint().find("nvidia-smi"), std::string::npos);
  EXPECT_EQ(error->code(), ExitCode::kRankDied);

  const auto library = shown(c10::Error(
      {"f", "f.cc", 1}, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm()"));
  ASSERT_TRUE(library);
  EXPECT_STREQ(library->what(),
               "cuda:1 has failed: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm()");
}

TEST(DeviceError, NamesAnOperatorWithoutADeterministicKernel) {
  const auto error = shown(
      c10::Error({"f", "f.cc", 1},
                 "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
                 "'torch.use_deterministic_algorithms(True)'. You can turn off determinism"));
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(),
               "deterministic = true: cumsum_cuda_kernel has no deterministic kernel on cuda:1");
  EXPECT_EQ(error->code(), ExitCode::kUsage);
  const auto products = shown(c10::Error(
      {"f", "f.cc", 1}, "Deterministic behavior was enabled with either this or that, but CuBLAS"));
  ASSERT_TRUE(products);
  EXPECT_NE(std::string(products->what()).find("CUBLAS_WORKSPACE_CONFIG"), std::string::npos);
}

TEST(DeviceError, LeavesOtherErrorsAlone) {
  EXPECT_FALSE(shown(c10::Error({"f", "f.cc", 1}, "shapes do not match")));
  EXPECT_FALSE(device_error(c10::Error({"f", "f.cc", 1}, "CUDA error: of no concern"), at::kCPU));
}

}  // namespace
}  // namespace troika
