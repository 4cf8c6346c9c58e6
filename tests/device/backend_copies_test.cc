// Copies between host and device: those that block, and those that finish late.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/backend/checks.h"
#include "device/backend/streams.h"

namespace troika::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor on_device(double value, std::int64_t count = 8) {
  return at::full({count}, value, at::TensorOptions(at::kDouble).device(test_device()));
}

at::Tensor pinned(double value, std::int64_t count = 8) {
  return at::full({count}, value, at::TensorOptions(at::kDouble).pinned_memory(true));
}

bool is_poison(const at::Tensor& host) {
  return host.isnan().all().item<bool>();
}

using DeviceCopies = TestDeviceFixture;

TEST_F(DeviceCopies, ArePoisonOnTheHostUntilAWait) {
  const at::Tensor host = pinned(0);
  host.copy_(on_device(5), /*non_blocking=*/true);
  EXPECT_TRUE(is_poison(host));
  own_stream().synchronize();
  EXPECT_EQ(host.sum().item<double>(), 40);
}

TEST_F(DeviceCopies, EndWithTheEventThatComesAfter) {
  const at::Tensor host = pinned(0);
  c10::Event early(c10::DeviceType::HPU);
  early.record(own_stream());
  host.copy_(on_device(5), /*non_blocking=*/true);
  c10::Event late(c10::DeviceType::HPU);
  late.record(own_stream());
  early.synchronize();
  EXPECT_TRUE(is_poison(host));
  EXPECT_FALSE(late.query());
  EXPECT_TRUE(is_poison(host));
  EXPECT_TRUE(late.query());
  EXPECT_EQ(host.sum().item<double>(), 40);
}

TEST_F(DeviceCopies, ReadTheSourceLate) {
  const at::Tensor host = pinned(1);
  const at::Tensor device = on_device(0);
  device.copy_(host, /*non_blocking=*/true);
  host.fill_(2);  // too early: the copy sends what is there when it runs
  EXPECT_EQ(device.sum().item<double>(), 16);
}

TEST_F(DeviceCopies, EndBeforeTheNextKernelOfTheirStream) {
  const at::Tensor host = pinned(1);
  const at::Tensor device = host.to(test_device(), /*non_blocking=*/true);
  const at::Tensor sum = device.sum();
  host.fill_(2);
  EXPECT_EQ(sum.item<double>(), 8);
}

TEST_F(DeviceCopies, EndBeforeAKernelThatWaitsForTheirStream) {
  const at::Tensor host = pinned(1);
  const c10::Stream copies = other_stream();
  at::Tensor device;
  {
    const c10::StreamGuard guard(copies);
    device = host.to(test_device(), /*non_blocking=*/true);
  }
  static_cast<void>(on_device(1) + 1);  // a kernel that does not
  host.fill_(3);
  wait(copies, own_stream());
  EXPECT_EQ(device.sum().item<double>(), 24);
}

TEST_F(DeviceCopies, AreCaughtWhereNothingWaitsForThem) {
  const c10::Stream copies = other_stream();
  at::Tensor device;
  {
    const c10::StreamGuard guard(copies);
    device = pinned(1).to(test_device(), /*non_blocking=*/true);
  }
  EXPECT_THROW(static_cast<void>(device + 1), c10::Error);
  EXPECT_THAT(take_device_faults(),
              ElementsAre(HasSubstr("aten::add.out on stream 0 reads what aten::copy_ on stream")));
}

TEST_F(DeviceCopies, AreCaughtOnPinnedMemoryToo) {
  const at::Tensor host = pinned(0);
  const c10::Stream copies = other_stream();
  host.copy_(on_device(1), /*non_blocking=*/true);
  const c10::StreamGuard guard(copies);
  EXPECT_THROW(static_cast<void>(host.to(test_device(), /*non_blocking=*/true)), c10::Error);
  EXPECT_THAT(take_device_faults(),
              ElementsAre(HasSubstr("reads what aten::copy_ on stream 0 writes")));
}

TEST_F(DeviceCopies, KeepPinnedMemoryThatIsFreed) {
  at::Tensor host = pinned(3);
  const at::Tensor device = host.to(test_device(), /*non_blocking=*/true);
  host.reset();
  EXPECT_EQ(device.sum().item<double>(), 24);
}

TEST_F(DeviceCopies, OverOneBufferKeepTheirOrder) {
  const at::Tensor host = pinned(4);
  const at::Tensor first = on_device(0);
  first.copy_(host, /*non_blocking=*/true);
  host.copy_(on_device(6), /*non_blocking=*/true);
  EXPECT_TRUE(is_poison(host));
  EXPECT_EQ(first.sum().item<double>(), 32);
  EXPECT_EQ(host.sum().item<double>(), 48);
}

TEST_F(DeviceCopies, WaitForMemoryThatIsGivenAgain) {
  at::Tensor host = pinned(0);
  at::Tensor device = on_device(2);
  host.copy_(device, /*non_blocking=*/true);
  const void* const address = device.const_data_ptr();
  device.reset();
  const at::Tensor next = at::empty({8}, at::TensorOptions(at::kDouble).device(test_device()));
  ASSERT_EQ(next.const_data_ptr(), address);
  own_stream().synchronize();
  EXPECT_EQ(host.sum().item<double>(), 16);
}

TEST_F(DeviceCopies, BlockForPageableMemory) {
  const DeviceCounters before = device_counters();
  const at::Tensor host = at::full({8}, 1.0, at::kDouble);
  const at::Tensor device = host.to(test_device(), /*non_blocking=*/true);
  host.fill_(2);
  EXPECT_EQ(device.sum().item<double>(), 8);
  host.copy_(device, /*non_blocking=*/true);
  EXPECT_EQ(host.sum().item<double>(), 8);
  EXPECT_EQ((device_counters() - before).late_copies, 0);
  EXPECT_EQ((device_counters() - before).host_waits, 3);
  EXPECT_EQ((device_counters() - before).host_reads, 2);
}

TEST_F(DeviceCopies, ToTheHostThatNeedNotBlockPinTheirResult) {
  const at::Tensor host = on_device(5).to(at::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_TRUE(is_poison(host));
}

TEST_F(DeviceCopies, BlockWhereTheyConvert) {
  const at::Tensor host = pinned(1);
  const at::Tensor device = at::empty({8}, at::TensorOptions(at::kFloat).device(test_device()));
  device.copy_(host, /*non_blocking=*/true);
  host.fill_(2);
  EXPECT_EQ(device.sum().item<double>(), 8);
}

TEST_F(DeviceCopies, ConvertAndBroadcast) {
  const at::Tensor row = at::arange(4, at::kDouble) / 3;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
    EXPECT_TRUE(at::equal(row.to(test_device(), type).cpu(), row.to(type))) << type;
    EXPECT_TRUE(at::equal(row.to(test_device()).to(type).cpu(), row.to(type))) << type;
  }
  const at::Tensor matrix = at::zeros({3, 4}, at::TensorOptions(at::kDouble).device(test_device()));
  matrix.copy_(row);
  matrix.select(0, 1).copy_(row.to(test_device()).flip(0));
  EXPECT_TRUE(at::equal(matrix.cpu(), at::stack({row, row.flip(0), row})));
  EXPECT_TRUE(at::equal(matrix.t().cpu(), matrix.cpu().t()));
}

}  // namespace
}  // namespace troika::test
