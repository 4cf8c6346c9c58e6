// The memory of the test device: out of the host's reach, cached by stream, counted and limited.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "device/backend/checks.h"
#include "device/backend/streams.h"

namespace troika::test {
namespace {

at::Tensor doubles(std::int64_t count, int device = 0) {
  return at::empty({count}, at::TensorOptions(at::kDouble).device(test_device(device)));
}

class DeviceMemoryTest : public TestDeviceFixture {
 protected:
  static c10::CachingDeviceAllocator::DeviceStats stats(int device = 0) {
    return c10::getDeviceAllocator(c10::DeviceType::HPU)
        ->getDeviceStats(static_cast<c10::DeviceIndex>(device));
  }
  static std::int64_t allocated() { return stats().allocated_bytes[0].current; }
};

using DeviceMemoryDeathTest = DeviceMemoryTest;

TEST_F(DeviceMemoryDeathTest, CrashesAHostPointer) {
  const at::Tensor tensor = at::ones({4}, at::TensorOptions(at::kDouble).device(test_device()));
  const auto read = [&] { return *static_cast<volatile const double*>(tensor.const_data_ptr()); };
  const auto write = [&] { *static_cast<volatile double*>(tensor.mutable_data_ptr()) = 1; };
  constexpr auto kMessage = "host code touches memory of the test device";
  EXPECT_DEATH(static_cast<void>(read()), kMessage);
  EXPECT_DEATH(write(), kMessage);
}

TEST_F(DeviceMemoryTest, IsPoisonedUntilItIsWritten) {
  EXPECT_TRUE(doubles(5).isnan().all().item<bool>());
  const auto options = at::TensorOptions(at::kBFloat16).device(test_device());
  EXPECT_TRUE(at::empty({5}, options).isnan().all().item<bool>());
  EXPECT_EQ(at::empty({1}, options.dtype(at::kLong)).item<std::int64_t>(), -1);
}

TEST_F(DeviceMemoryTest, KeepsTheDevicesApart) {
  EXPECT_EQ(doubles(3, 1).device(), test_device(1));
  const auto before = stats(0).allocated_bytes[0].current;
  const at::Tensor there = doubles(1000, 3);
  EXPECT_EQ(stats(0).allocated_bytes[0].current, before);
  EXPECT_GE(stats(3).allocated_bytes[0].current, 8000);
  EXPECT_THROW(static_cast<void>(there + doubles(1000, 0)), c10::Error);
  EXPECT_THROW(static_cast<void>(there + at::ones({1000})), c10::Error);
  EXPECT_THROW(static_cast<void>(test_device(kTestDevices)), c10::Error);
}

TEST_F(DeviceMemoryTest, GivesABlockToItsStreamAgainAndToNoOther) {
  const void* const address = doubles(100).const_data_ptr();
  {
    const c10::StreamGuard guard(other_stream());
    EXPECT_NE(doubles(100).const_data_ptr(), address);
  }
  EXPECT_EQ(doubles(100).const_data_ptr(), address);
}

TEST_F(DeviceMemoryTest, WaitsForTheStreamsThatAreRecorded) {
  const c10::Stream other = other_stream();
  at::Tensor tensor = doubles(100).zero_();
  const void* const address = tensor.const_data_ptr();
  wait(own_stream(), other);
  {
    const c10::StreamGuard guard(other);
    tensor.add_(1);
  }
  tensor.record_stream(other);
  tensor.reset();
  EXPECT_NE(doubles(100).const_data_ptr(), address);
  other.synchronize();
  EXPECT_EQ(doubles(100).const_data_ptr(), address);
}

TEST_F(DeviceMemoryTest, CountsWhatIsAllocatedAndItsPeak) {
  const std::int64_t before = allocated();
  {
    const at::Tensor a = doubles(1024);
    const at::Tensor b = doubles(2048);
    EXPECT_EQ(allocated(), before + 24576);
  }
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(stats().allocated_bytes[0].peak, before + 24576);
  c10::getDeviceAllocator(c10::DeviceType::HPU)->resetPeakStats(0);
  EXPECT_EQ(stats().allocated_bytes[0].peak, before);
  EXPECT_GE(stats().reserved_bytes[0].current, 24576);
  reset_test_devices();
  EXPECT_EQ(stats().reserved_bytes[0].current, stats().active_bytes[0].current);
}

TEST_F(DeviceMemoryTest, RunsOut) {
  const LimitDeviceMemory limit(std::size_t{1} << 20);
  EXPECT_EQ(c10::getDeviceAllocator(c10::DeviceType::HPU)->getMemoryInfo(0).second,
            std::size_t{1} << 20);
  const at::Tensor half = doubles(65536);
  EXPECT_THROW(static_cast<void>(doubles(65537)), c10::OutOfMemoryError);
  EXPECT_NO_THROW(static_cast<void>(doubles(65536)));
  // What is cached in one size is there for another.
  EXPECT_NO_THROW(static_cast<void>(doubles(32768)));
  EXPECT_EQ(stats().num_ooms, 1);
}

TEST_F(DeviceMemoryTest, KeepsValuesWhenATensorGrows) {
  at::Tensor tensor = at::arange(6, at::TensorOptions(at::kDouble).device(test_device()));
  tensor.resize_({3, 4});
  EXPECT_TRUE(at::equal(tensor.cpu().flatten().slice(0, 0, 6), at::arange(6, at::kDouble)));
  at::Tensor out = at::empty({0}, tensor.options());
  at::add_out(out, tensor.slice(0, 0, 1), tensor.slice(0, 0, 1));
  EXPECT_TRUE(at::equal(out.cpu(), 2 * at::arange(4, at::kDouble).view({1, 4})));
}

TEST_F(DeviceMemoryTest, LetsTensorsShareAStorage) {
  const at::Tensor arena = at::zeros({12}, at::TensorOptions(at::kDouble).device(test_device()));
  at::Tensor slice = at::empty({0}, arena.options());
  slice.set_(arena.storage(), 4, {2, 3}, {3, 1});
  slice.fill_(7);
  EXPECT_EQ(arena.sum().item<double>(), 42);
  EXPECT_EQ(arena.narrow(0, 4, 6).view({3, 2}).select(0, 1).sum().item<double>(), 14);
  at::Tensor same = at::empty({0}, arena.options());
  same.set_(slice);
  EXPECT_TRUE(same.is_alias_of(arena));
  EXPECT_EQ(same.storage_offset(), 4);
  const at::Tensor by_address = at::from_blob(slice.mutable_data_ptr(), {6}, arena.options());
  EXPECT_EQ(by_address.device(), test_device());
  EXPECT_EQ(by_address.sum().item<double>(), 42);
}

TEST_F(DeviceMemoryTest, PinsHostMemory) {
  const at::Tensor pinned = at::ones({5}, at::TensorOptions(at::kDouble).pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.slice(0, 3).is_pinned());
  const at::Tensor pageable = at::ones({5}, at::kDouble);
  EXPECT_FALSE(pageable.is_pinned());
  EXPECT_TRUE(pageable.pin_memory().is_pinned());
  EXPECT_TRUE(at::equal(pageable.pin_memory(), pinned));
}

}  // namespace
}  // namespace troika::test
