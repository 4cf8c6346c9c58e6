// Every operation of a group on tensors of a device: what it gives on the host, whatever
// else the streams do meanwhile.
#include <ATen/ATen.h>
#include <troika/comm/engine_kind.h>
#include <troika/comm/staged/engine.h>

#include <functional>
#include <thread>

#include "device/through_group.h"
#include "device/under_test.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

at::Tensor numbers(std::int64_t count, int rank, at::Device device) {
  return (at::arange(count, at::kDouble) * (rank + 1) + rank).to(device);
}

// What an operation leaves on this rank, with tensors of `device`.
using Operation = std::function<at::Tensor(const Group&, at::Device)>;

std::vector<std::pair<std::string, Operation>> operations(std::int64_t count) {
  const auto call = Rank::call("x");
  return {
      {"all_reduce",
       [=](const Group& group, at::Device device) {
         const at::Tensor x = numbers(count, group.rank(), device);
         group.all_reduce(x, ReduceOp::kSum, call).wait();
         return x;
       }},
      {"reduce_scatter",
       [=](const Group& group, at::Device device) {
         std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count);
         counts[0] += 3;
         const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
         const at::Tensor input = numbers(group.size() * count + 3, group.rank(), device);
         const at::Tensor output = at::empty({own}, input.options());
         group.reduce_scatter(output, input, ReduceOp::kAverage, call, counts).wait();
         return output;
       }},
      {"all_gather",
       [=](const Group& group, at::Device device) {
         std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count);
         counts[0] += 3;
         const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
         const at::Tensor input = numbers(own, group.rank(), device);
         const at::Tensor output = at::empty({group.size() * count + 3}, input.options());
         group.all_gather(output, input, call, counts).wait();
         return output;
       }},
      {"all_to_all",
       [=](const Group& group, at::Device device) {
         const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count);
         const at::Tensor input = numbers(group.size() * count, group.rank(), device);
         const at::Tensor output = at::empty_like(input);
         group.all_to_all(output, counts, input, counts, call).wait();
         return output;
       }},
      {"broadcast",
       [=](const Group& group, at::Device device) {
         const at::Tensor x = numbers(count, group.rank(), device);
         group.broadcast(x, group.size() - 1, call).wait();
         return x;
       }},
      {"gather",
       [=](const Group& group, at::Device device) {
         const at::Tensor input = numbers(count, group.rank(), device);
         const at::Tensor output =
             group.rank() == 0 ? at::zeros({group.size(), count}, input.options()) : at::Tensor();
         group.gather(output, input, 0, call).wait();
         return output.defined() ? output : input;
       }},
      {"scatter",
       [=](const Group& group, at::Device device) {
         const at::Tensor output =
             at::zeros({count}, at::TensorOptions(at::kDouble).device(device));
         const at::Tensor input = group.rank() == 0
                                      ? numbers(group.size() * count, 7, device).view({-1, count})
                                      : at::Tensor();
         group.scatter(output, input, 0, call).wait();
         return output;
       }},
      {"exchange",
       [=](const Group& group, at::Device device) {
         using enum Transfer::Direction;
         const int next = (group.rank() + 1) % group.size();
         const int before = (group.rank() + group.size() - 1) % group.size();
         const at::Tensor sent = numbers(count, group.rank(), device);
         const at::Tensor received = at::empty_like(sent);
         const std::vector<Transfer> legs = {{kSend, next, sent}, {kReceive, before, received}};
         group.exchange(legs, call).wait();
         return received;
       }},
  };
}

RANK_TEST(DeviceGroup, EveryOperationIsTheHosts, 2, 3) {
  const DeviceWatch watch;
  const Group group = rank.group();
  const auto expect_the_same = [&](const std::string& name, const Operation& operation) {
    const at::Tensor host = operation(group, at::kCPU);
    const at::Tensor device = operation(group, device_under_test());
    EXPECT_TRUE(device.cpu().equal(host)) << name;
    group.barrier(Rank::call("b")).wait();
  };
  for (const auto& [name, operation] : operations(1000)) expect_the_same(name, operation);
  // An all-reduce goes in pieces.
  expect_the_same("pieces", operations(2 * StagedEngine::kChunkBytes / 8 + 11)[0].second);
}

// From a thread with a current stream of its own, as autograd's is, and waited for on another.
RANK_TEST(DeviceGroup, FollowsTheStreamsOfItsCallers, 2) {
  const DeviceWatch watch;
  const DeviceStream stream(device_under_test());
  at::Tensor x;
  Work work;
  std::thread caller([&] {
    const DeviceStream::Scope beside(stream);
    x = numbers(1000, rank.index(), device_under_test()) * 2;
    work = rank.group().all_reduce(x, ReduceOp::kSum, Rank::call("x"));
  });
  caller.join();
  work.wait();
  const at::Tensor expected = (numbers(1000, 0, at::kCPU) + numbers(1000, 1, at::kCPU)) * 2;
  EXPECT_TRUE((x + 1).cpu().equal(expected + 1));
}

// Tensors of the device go to its own engine where there is one, the host's to theirs as before.
RANK_TEST(DeviceGroup, AsksOnceForAnEngineOfTheDevice, 2) {
  const DeviceWatch watch;
  const std::vector<int> ranks = {0, 1};
  const auto engine_for = [&](const std::string& name, at::DeviceType type) {
    return std::make_shared<ThroughGroup>(type,
                                          make_group(name, ranks, rank.index(), rank.options()));
  };
  const auto host = engine_for("host", at::kCPU);
  std::shared_ptr<ThroughGroup> device;
  int asked = 0;
  const Group group("mixed", ranks, rank.index(), 0, host, 1, {}, [&](at::Device of) {
    ++asked;
    EXPECT_EQ(of, device_under_test());
    return device = engine_for("device", of.type());
  });
  for (int i = 0; i < 2; ++i) {
    for (const at::Device on : {at::Device(at::kCPU), device_under_test()}) {
      const at::Tensor x = numbers(3, rank.index(), on);
      group.all_reduce(x, ReduceOp::kSum, Rank::call("x")).wait();
      EXPECT_TRUE(x.cpu().equal(numbers(3, 0, at::kCPU) + numbers(3, 1, at::kCPU)));
    }
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(host->calls, 2);
  EXPECT_EQ(device->calls, 2);
}

}  // namespace
}  // namespace troika::test
