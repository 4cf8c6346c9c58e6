// Streams and events of the test device, and the checker that finds waits which are missing.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "device/backend/checks.h"
#include "device/backend/streams.h"

namespace troika::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeviceStreams : public TestDeviceFixture {
 protected:
  // Adds one to the tensor on the other stream.
  void add_on_other(const at::Tensor& tensor) const {
    const c10::StreamGuard guard(other_);
    tensor.add_(1);
  }

  // Does the same, where a wait is missing.
  void add_too_early(const at::Tensor& tensor, const std::string& fault) const {
    EXPECT_THROW(add_on_other(tensor), c10::Error);
    EXPECT_THAT(take_device_faults(), ElementsAre(HasSubstr(fault)));
  }

  const at::Tensor zeros_ = at::zeros({64}, at::TensorOptions(at::kDouble).device(test_device()));
  const c10::Stream own_ = own_stream();
  const c10::Stream other_ = other_stream();
};

TEST_F(DeviceStreams, FailAtTheKernelThatIsNamedAndEverAfter) {
  const at::Tensor there = at::zeros({4}, at::TensorOptions(at::kDouble).device(test_device(1)));
  {
    const FailDevice failure(2);
    zeros_.add_(1);
    EXPECT_THROW(zeros_.add_(1), c10::AcceleratorError);
    EXPECT_THROW(zeros_.add_(1), c10::AcceleratorError);
    EXPECT_THROW(wait(own_, other_), c10::AcceleratorError);
    EXPECT_THROW(own_.synchronize(), c10::AcceleratorError);
    EXPECT_NO_THROW(there.add_(1));
  }
  zeros_.add_(1);
  EXPECT_EQ(zeros_[0].item<double>(), 2);
}

// A copy on another stream is under way when the device fails, and nothing can wait for it any
// more.
TEST_F(DeviceStreams, HaveNothingUnderWayAfterAFailure) {
  {
    const FailDevice failure(3);
    const at::Tensor read = at::ones({64}, zeros_.options());
    wait(own_, other_);
    const c10::StreamGuard guard(other_);
    zeros_.add_(read);
    EXPECT_THROW(zeros_.add_(1), c10::AcceleratorError);
  }
  EXPECT_NO_THROW(at::ones({64}, zeros_.options()).add_(1));
}

TEST_F(DeviceStreams, CatchesAReadThatDoesNotWait) {
  const c10::StreamGuard guard(other_);
  EXPECT_THROW(static_cast<void>(zeros_ + 1), c10::Error);
  const auto faults = take_device_faults();
  ASSERT_EQ(faults.size(), 1);
  EXPECT_EQ(faults[0], "aten::add.out on stream " + std::to_string(other_.id()) +
                           " reads what aten::zero_ on stream 0 writes, and nothing waits");
  EXPECT_THAT(take_device_faults(), IsEmpty());
}

TEST_F(DeviceStreams, CatchesAWriteThatDoesNotWait) {
  wait(own_, other_);
  static_cast<void>(zeros_ + 1);
  const c10::StreamGuard guard(other_);
  EXPECT_THROW(zeros_.fill_(1), c10::Error);
  EXPECT_THAT(take_device_faults(),
              ElementsAre(HasSubstr("writes what aten::add.out on stream 0 reads")));
}

TEST_F(DeviceStreams, AcceptsAnEvent) {
  wait(own_, other_);
  add_on_other(zeros_);
  wait(other_, own_);
  EXPECT_EQ(zeros_.sum().item<double>(), 64);
}

TEST_F(DeviceStreams, AcceptsAWaitThatGoesThroughAThirdStream) {
  const c10::Stream third = other_stream();
  wait(own_, third);
  wait(third, other_);
  add_on_other(zeros_);
}

TEST_F(DeviceStreams, AnEventCoversWhatWasGivenBeforeItOnly) {
  c10::Event event(c10::DeviceType::HPU);
  event.record(own_);
  zeros_.add_(1);
  event.block(other_);
  add_too_early(zeros_, "reads what aten::add.out on stream 0 writes");
}

TEST_F(DeviceStreams, AcceptsAHostThatWaits) {
  own_.synchronize();
  add_on_other(zeros_);
  c10::Event event(c10::DeviceType::HPU);
  event.record(other_);
  event.synchronize();
  zeros_.add_(1);
  at::accelerator::synchronizeDevice(0);
  add_on_other(zeros_);
}

TEST_F(DeviceStreams, AcceptsAHostThatReads) {
  EXPECT_EQ(zeros_.sum().item<double>(), 0);
  add_on_other(zeros_);
}

TEST_F(DeviceStreams, SlicesOfOneBlockAreNoConflict) {
  wait(own_, other_);
  zeros_.slice(0, 0, 32).add_(1);
  add_on_other(zeros_.slice(0, 32));
  add_on_other(zeros_.slice(0, 40, 48));
  add_too_early(zeros_.slice(0, 31, 33), "writes");
}

TEST_F(DeviceStreams, ColumnsOfOneMatrixAreNoConflict) {
  wait(own_, other_);
  const at::Tensor matrix = zeros_.view({8, 8});
  matrix.narrow(1, 0, 4).add_(1);
  add_on_other(matrix.narrow(1, 4, 4));
  add_on_other(matrix.t().narrow(0, 5, 2));
  add_too_early(matrix.select(0, 3), "writes");
}

TEST_F(DeviceStreams, CatchesMemoryThatIsGivenAwayTooEarly) {
  at::Tensor used = at::zeros({1000}, zeros_.options());
  wait(own_, other_);
  add_on_other(used);
  used.reset();
  EXPECT_THROW(static_cast<void>(at::empty({1000}, zeros_.options())), c10::Error);
  EXPECT_THAT(take_device_faults(), ElementsAre(HasSubstr("record_stream is missing")));
}

TEST_F(DeviceStreams, AcceptsMemoryThatIsFreedAfterAWait) {
  at::Tensor used = at::zeros({1000}, zeros_.options());
  wait(own_, other_);
  add_on_other(used);
  wait(other_, own_);
  used.reset();
  EXPECT_NO_THROW(static_cast<void>(at::empty({1000}, zeros_.options())));
}

TEST_F(DeviceStreams, RemembersWhatAThreadSwallows) {
  bool swallowed = false;
  std::thread([&] {
    try {
      add_on_other(zeros_);
    } catch (const std::exception&) {
      swallowed = true;
    }
  }).join();
  EXPECT_TRUE(swallowed);
  EXPECT_EQ(take_device_faults().size(), 1);
}

TEST_F(DeviceStreams, BelongToThreads) {
  const c10::StreamGuard guard(other_);
  std::thread([&] { EXPECT_EQ(own_stream(), own_); }).join();
  EXPECT_EQ(own_stream(), other_);
  EXPECT_EQ(at::accelerator::getCurrentStream(0), other_);
}

TEST_F(DeviceStreams, RunKernelsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (int device = 0; device < kTestDevices; ++device) {
    threads.emplace_back([device] {
      const c10::DeviceGuard guard(test_device(device));
      const at::Tensor sum =
          at::zeros({1000}, at::TensorOptions(at::kDouble).device(test_device(device)));
      for (int i = 0; i < 200; ++i) {
        sum.add_(at::ones_like(sum));
      }
      EXPECT_EQ(sum.sum().item<double>(), 200'000);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(DeviceStreams, AnEventEndsAtTheSecondLook) {
  c10::Event event(c10::DeviceType::HPU);
  EXPECT_TRUE(event.query());  // never recorded
  event.record(own_);
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(event.query());
  add_on_other(zeros_);  // the host knows now
  EXPECT_FALSE(other_.query());
  EXPECT_TRUE(other_.query());
}

TEST_F(DeviceStreams, CopiesBetweenDevicesWaitByThemselves) {
  zeros_.add_(3);
  const at::Tensor there = zeros_.to(test_device(2));
  EXPECT_EQ(there.device(), test_device(2));
  zeros_.add_(1);  // the source may be written again
  EXPECT_EQ((there + there).sum().item<double>(), 64 * 6);
  wait(own_stream(2), other_);
  EXPECT_EQ(there.to(test_device(0)).sum().item<double>(), 64 * 3);
}

TEST_F(DeviceStreams, WaitAcrossDevices) {
  const c10::Stream there = other_stream(1);
  const at::Tensor tensor = at::zeros({4}, at::TensorOptions(at::kDouble).device(test_device(1)));
  const c10::StreamGuard guard(there);
  EXPECT_THROW(tensor.add_(1), c10::Error);
  EXPECT_THAT(take_device_faults(),
              ElementsAre(HasSubstr(" of hpu:1 reads what aten::zero_ on stream 0 of hpu:1")));
  wait(own_stream(0), there);  // which knows nothing of the other device
  EXPECT_THROW(tensor.add_(1), c10::Error);
  EXPECT_EQ(take_device_faults().size(), 1);
}

TEST_F(DeviceStreams, CountWhatTheHostWaitsFor) {
  const DeviceCounters before = device_counters();
  const at::Tensor sum = zeros_.sum();
  EXPECT_EQ((device_counters() - before).kernels, 1);
  EXPECT_EQ((device_counters() - before).host_waits, 0);
  static_cast<void>(sum.item<double>());
  static_cast<void>(zeros_.nonzero());
  static_cast<void>(at::equal(zeros_, zeros_));
  static_cast<void>(zeros_.cpu());
  EXPECT_EQ((device_counters() - before).host_reads, 4);
  EXPECT_EQ((device_counters() - before).host_waits, 4);
  own_.synchronize();
  EXPECT_EQ((device_counters() - before).host_waits, 5);
  EXPECT_EQ((device_counters() - before).device_synchronizations, 0);
  at::accelerator::synchronizeDevice(0);
  EXPECT_EQ((device_counters() - before).device_synchronizations, 1);
}

TEST_F(DeviceStreams, ForbidToWaitForAWholeDevice) {
  {
    const ForbidDeviceSynchronization forbidden;
    EXPECT_NO_THROW(own_.synchronize());
    EXPECT_THROW(at::accelerator::synchronizeDevice(0), c10::Error);
  }
  EXPECT_THAT(take_device_faults(), ElementsAre(HasSubstr("synchronized as a whole")));
  EXPECT_NO_THROW(at::accelerator::synchronizeDevice(0));
}

}  // namespace
}  // namespace troika::test
