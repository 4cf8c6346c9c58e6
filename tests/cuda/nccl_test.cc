// The engine nccl with several ranks on one GPU, as root. NCCL refuses two ranks of a host on one
// GPU, so each rank pretends to be a host of its own: by its name (in a name space that is its
// own), and by NCCL_HOSTID. They communicate by sockets over loopback, as GPUs of two hosts without
// InfiniBand do.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <troika/base/error.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include "cuda/values.h"
#include "device/under_test.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// Takes root's rights.
void stand_apart(const Rank& rank) {
  const std::string name = "host-" + std::to_string(rank.index());
  if (unshare(CLONE_NEWUTS) != 0 || sethostname(name.data(), name.size()) != 0) {
    throw std::runtime_error("only root may have a host name of its own");
  }
  setenv("NCCL_HOSTID", name.c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
}

// Small whole numbers: sums of them are exact in every type.
at::Tensor given_by(int rank, std::int64_t elements, at::ScalarType type) {
  return (at::arange(elements, at::kLong) * 7 + 13 * rank).remainder(30).to(type).to(kGpu);
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(found.cpu().equal(expected.cpu())) << what;
}

void check_reductions(const Group& group, std::int64_t elements, at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(given_by(rank, elements, type));
  const at::Tensor stacked = at::stack(all).to(at::kDouble);
  const auto reduced = [&](ReduceOp op) {
    const at::Tensor x = given_by(group.rank(), elements, type);
    group.all_reduce(x, op, Rank::call("x")).wait();
    return x;
  };
  expect_equal(reduced(ReduceOp::kSum), stacked.sum(0).to(type), "sum");
  expect_equal(reduced(ReduceOp::kMax), stacked.amax(0).to(type), "max");
  expect_equal(reduced(ReduceOp::kMin), stacked.amin(0).to(type), "min");
  if (!at::isFloatingType(type)) return;
  // NCCL multiplies by 1 / size before it adds: exact for powers of two alone.
  const at::Tensor found = reduced(ReduceOp::kAverage).to(at::kDouble);
  const double bound = 16 * epsilon(type) * 30;
  EXPECT_LE((found - stacked.mean(0)).abs().max().item<double>(), bound) << "average";
}

// Member i has i + 1 thirds of the elements.
void check_parts(const Group& group, std::int64_t elements, at::ScalarType type) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) counts.push_back((rank + 1) * elements / 3);
  const auto own = static_cast<std::size_t>(group.rank());
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::int64_t start =
      std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
  const at::Tensor input = given_by(group.rank(), total, type);
  const at::Tensor part = at::zeros({counts[own]}, input.options());
  group.reduce_scatter(part, input, ReduceOp::kSum, Rank::call("parts"), counts).wait();
  at::Tensor sum = at::zeros({total}, at::TensorOptions(at::kDouble).device(kGpu));
  for (int rank = 0; rank < group.size(); ++rank) sum += given_by(rank, total, type);
  expect_equal(part, sum.narrow(0, start, counts[own]).to(type), "reduce_scatter");
  const at::Tensor whole = given_by(3, total, type), gathered = at::zeros_like(whole);
  group.all_gather(gathered, whole.narrow(0, start, counts[own]), Rank::call("whole"), counts)
      .wait();
  expect_equal(gathered, whole, "all_gather");
}

void check_moves(const Group& group, std::int64_t elements, at::ScalarType type) {
  using enum Transfer::Direction;
  const int last = group.size() - 1;
  const at::Tensor own = given_by(group.rank(), elements, type);
  const at::Tensor sent = own.clone();
  group.broadcast(sent, last, Rank::call("broadcast")).wait();
  expect_equal(sent, given_by(last, elements, type), "broadcast");

  const at::Tensor rows =
      group.rank() == last ? at::zeros({group.size(), elements}, own.options()) : at::Tensor();
  group.gather(rows, own, last, Rank::call("gather")).wait();
  for (int rank = 0; rows.defined() && rank < group.size(); ++rank) {
    expect_equal(rows[rank], given_by(rank, elements, type), "gather");
  }
  const at::Tensor row = at::zeros_like(own);
  group.scatter(row, rows, last, Rank::call("scatter")).wait();
  expect_equal(row, own, "scatter");

  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), elements);
  const at::Tensor pairs = own.repeat({group.size()}), exchanged = at::zeros_like(pairs);
  group.all_to_all(exchanged, counts, pairs, counts, Rank::call("all_to_all")).wait();
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + last) % group.size();
  const at::Tensor received = at::zeros_like(own);
  const std::vector<Transfer> legs = {{kSend, next, own}, {kReceive, before, received}};
  group.exchange(legs, Rank::call("exchange")).wait();
  expect_equal(received, given_by(before, elements, type), "exchange");
  for (int rank = 0; rank < group.size(); ++rank) {
    expect_equal(exchanged.narrow(0, rank * elements, elements), given_by(rank, elements, type),
                 "all_to_all");
  }
}

RANK_TEST(Nccl, EveryOperation, 2, 3) {
  const DeviceWatch watch;
  stand_apart(rank);
  const Group group = rank.group();
  for (const at::ScalarType type :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
    for (const std::int64_t elements : {3, 30003}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(elements));
      check_reductions(group, elements, type);
      check_parts(group, elements, type);
      check_moves(group, elements, type);
    }
  }
  group.barrier(Rank::call("barrier")).wait();
  EXPECT_EQ(group.engine_name(kGpu), "nccl");
}

// An operation follows what its caller's stream has been given, and what comes after it follows the
// operation.
RANK_TEST(Nccl, FollowsTheStreamsOfItsCallers, 2) {
  const DeviceWatch watch;
  stand_apart(rank);
  const Group group = rank.group();
  const DeviceStream stream(kGpu);
  const DeviceStream::Scope beside(stream);
  const at::Tensor large = at::ones({2048, 2048}, at::TensorOptions(at::kFloat).device(kGpu));
  for (int round = 0; round < 20; ++round) {
    at::Tensor slow = large;
    for (int i = 0; i < 20; ++i) slow = at::mm(slow, large) / 2048;
    const at::Tensor x = slow.mean().mul(rank.index() + 1 + round).reshape({1});
    group.all_reduce(x, ReduceOp::kSum, Rank::call("x")).wait();
    EXPECT_EQ((x + 1).item<float>(), static_cast<float>(4 + 2 * round)) << round;
  }
}

// Where a peer does not come, the operation ends at its deadline, and the process lives on.
RANK_TEST(Nccl, EndsAtItsDeadline, 2) {
  const DeviceWatch watch;
  stand_apart(rank);
  const Group group = rank.group();
  const at::Tensor x = at::ones({1000}, at::TensorOptions(at::kFloat).device(kGpu));
  group.all_reduce(x, ReduceOp::kSum, Rank::call("first")).wait();
  if (rank.index() == 0) {
    try {
      group.all_reduce(x, ReduceOp::kSum, Rank::call("second", Seconds(2))).wait();
      ADD_FAILURE() << "it has ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kRendezvous) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("'second' on axis data"));
    }
    EXPECT_EQ(at::ones({2}, x.options()).sum().item<float>(), 2);  // the GPU goes on
  }
  rank.wait_for_all("the end");
}

}  // namespace
}  // namespace troika::test
