// The engine that carries a device's tensors through the host, and which operations of a group go
// through it.
#include <ATen/ATen.h>
#include <troika/comm/staged/engine.h>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "support/silent_engine.h"

namespace troika::test {
namespace {

Call call() {
  return {"x", Deadline::in(Seconds(20))};
}

// An engine that counts its exchanges.
class ExchangeCounter final : public SilentEngine {
 public:
  explicit ExchangeCounter(at::DeviceType takes) : takes_(takes) {}
  [[nodiscard]] bool accepts(at::DeviceType device) const override { return device == takes_; }
  Work exchange(std::span<const Transfer>, const Call&) override {
    ++exchanges;
    return {};
  }
  void abort(const std::string& reason) override { aborted_with = reason; }

  int exchanges = 0;
  std::string aborted_with;

 private:
  at::DeviceType takes_;
};

class DeviceEngine : public TestDeviceFixture {
 protected:
  // A group of two, of which this is the first, whose tensors of the device have an engine.
  [[nodiscard]] Group group() {
    return {"mixed", {0, 1}, 0, 0, host, 1, {}, [this](at::Device) {
              ++asked;
              return device;
            }};
  }

  std::shared_ptr<ExchangeCounter> host = std::make_shared<ExchangeCounter>(at::kCPU);
  std::shared_ptr<ExchangeCounter> device = std::make_shared<ExchangeCounter>(at::kHPU);
  int asked = 0;
};

// Exchanges run beside each other, and only some members call them: they neither ask for an engine
// of the device nor go through it.
TEST_F(DeviceEngine, ExchangesGoThroughTheHost) {
  const Group mixed = group();
  const std::vector<Transfer> legs = {
      {Transfer::Direction::kSend, 1, at::ones({3}, at::TensorOptions(test_device()))}};
  mixed.exchange(legs, call()).wait();
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(host->exchanges, 1);
  const at::Tensor x = at::ones({3}, at::TensorOptions(test_device()));
  mixed.all_reduce(x, ReduceOp::kSum, call()).wait();
  EXPECT_EQ(asked, 1);
  mixed.exchange(legs, call()).wait();
  EXPECT_EQ(host->exchanges, 2);
  EXPECT_EQ(device->exchanges, 0);
}

TEST_F(DeviceEngine, HearsOfAnAbortAndIsNotMadeAfterOne) {
  const at::Tensor x = at::ones({3}, at::TensorOptions(test_device()));
  const Group made = group();
  made.all_reduce(x, ReduceOp::kSum, call()).wait();
  made.abort("a reason");
  EXPECT_EQ(host->aborted_with, "a reason");
  EXPECT_EQ(device->aborted_with, "a reason");
  const Group not_made = group();
  not_made.abort("another");
  not_made.all_reduce(x, ReduceOp::kSum, call()).wait();  // the host's engine would throw
  EXPECT_EQ(asked, 1);
}

class Staged : public TestDeviceFixture {};

// Neither an operation that is over nor the queue holds the engine of the host.
TEST_F(Staged, LetsGoOfTheHostsEngine) {
  auto inner = std::make_shared<SilentEngine>();
  const std::weak_ptr<SilentEngine> watch = inner;
  {
    StagedEngine staged(std::move(inner), 0);
    for (int i = 0; i < 10; ++i) staged.barrier(call()).wait();
    const at::Tensor x = at::ones({3}, at::TensorOptions(test_device()));
    staged.all_reduce(x, ReduceOp::kSum, call()).wait();
  }
  EXPECT_TRUE(watch.expired());
}

// What is given is read by a side stream: its memory is not given away before, though the caller
// lets go of it at once.
TEST_F(Staged, KeepsWhatIsGivenUntilItIsCopied) {
  StagedEngine staged(std::make_shared<SilentEngine>(), 0);
  const at::TensorOptions on_device(test_device());
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor output = at::zeros({2000}, on_device);
    works.push_back(staged.all_gather(output, at::ones({1000}, on_device) * i,
                                      std::vector<std::int64_t>{1000, 1000}, call()));
    const at::Tensor other = at::full({1000}, -1.0, on_device);
  }
  for (const Work& work : works) work.wait();
}

}  // namespace
}  // namespace troika::test
