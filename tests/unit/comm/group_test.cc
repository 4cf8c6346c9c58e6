// A group of one, and the checks that every engine relies on.
#include <troika/comm/group.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/comm/engines.h>

namespace troika {
namespace {

using testing::HasSubstr;

const Call kCall{"label", Deadline::in(Seconds(1))};

// Five ranks, of which this is the third; nothing is sent.
Group fake_group() {
  return make_group("data", {0, 1, 2, 3, 4}, 2, {.engine = "fake"});
}

template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(GroupOfOne, DoesNothingInPlace) {
  const Group group;
  const at::Tensor tensor = at::arange(4, at::kFloat);
  const at::Tensor before = tensor.clone();
  group.all_reduce(tensor, ReduceOp::kAverage, kCall).wait();
  group.broadcast(tensor, 0, kCall).wait();
  group.barrier(kCall).wait();
  EXPECT_TRUE(at::equal(tensor, before));
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.engine_name(), "none");
  EXPECT_EQ(group.input_bytes(), 0u);
}

TEST(GroupOfOne, CopiesOtherwise) {
  const Group group;
  const at::Tensor input = at::arange(4, at::kFloat);
  const std::int64_t four[] = {4};
  const auto expect_copied = [&](const auto& operation) {
    const at::Tensor output = at::zeros({4});
    operation(output);
    EXPECT_TRUE(at::equal(output, input));
  };
  expect_copied(
      [&](const at::Tensor& o) { group.reduce_scatter(o, input, ReduceOp::kSum, kCall).wait(); });
  expect_copied([&](const at::Tensor& o) { group.all_gather(o, input, kCall).wait(); });
  expect_copied([&](const at::Tensor& o) { group.all_to_all(o, four, input, four, kCall).wait(); });
  expect_copied([&](const at::Tensor& o) { group.gather(o, input, 0, kCall).wait(); });
  expect_copied([&](const at::Tensor& o) { group.scatter(o, input, 0, kCall).wait(); });
  expect_copied([&](const at::Tensor& o) {
    const Transfer transfers[] = {{Transfer::Direction::kReceive, 0, o},
                                  {Transfer::Direction::kSend, 0, input}};
    group.exchange(transfers, kCall).wait();
  });
}

TEST(GroupOfOne, TakesPartOfItsOwnInputAsOutput) {
  const at::Tensor tensor = at::arange(4, at::kFloat);
  Group().reduce_scatter(tensor, tensor, ReduceOp::kSum, kCall).wait();
  Group().all_gather(tensor, tensor, kCall).wait();
  EXPECT_TRUE(at::equal(tensor, at::arange(4, at::kFloat)));
}

TEST(Group, AllocatesAlignedZeros) {
  for (const Group& group : {Group(), fake_group()}) {
    const at::Tensor memory = group.allocate(1000);
    EXPECT_EQ(memory.nbytes(), 1000u);
    EXPECT_EQ(memory.sum().item<std::int64_t>(), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data_ptr()) % 64, 0u);
  }
}

TEST(Group, RefusesBadTensorsByName) {
  for (const Group& group : {Group(), fake_group()}) {
    const auto all_reduce = [&](const at::Tensor& tensor) {
      return refusal([&] { (void)group.all_reduce(tensor, ReduceOp::kSum, kCall); });
    };
    EXPECT_EQ(all_reduce(at::Tensor()), "all_reduce 'label': the tensor is undefined");
    EXPECT_THAT(all_reduce(at::zeros({3, 2}).t()),
                HasSubstr("all_reduce 'label': the tensor of shape [2, 3] is not contiguous"));
    EXPECT_THAT(all_reduce(at::zeros({2}, at::kBool)), HasSubstr("the tensor has dtype Bool"));
    EXPECT_THAT(all_reduce(at::zeros({2}, at::kComplexFloat)), HasSubstr("dtype ComplexFloat"));
    EXPECT_EQ(all_reduce(at::zeros({2})), "accepted");
    EXPECT_THAT(refusal([&] {
                  (void)group.all_reduce(at::zeros({2}, at::kInt), ReduceOp::kAverage, kCall);
                }),
                HasSubstr("an average of int32 is not defined"));
    EXPECT_THAT(
        refusal([&] { (void)group.all_reduce(at::zeros({2}), static_cast<ReduceOp>(4), kCall); }),
        HasSubstr("no ReduceOp has the number 4"));
  }
}

TEST(Group, RefusesWrongSizes) {
  const Group group = fake_group();
  const at::Tensor ten = at::zeros({10});
  const at::Tensor two = at::zeros({2});
  const std::int64_t counts[] = {1, 2, 3, 4, 0};
  const std::int64_t four_counts[] = {1, 2, 3, 4};
  const std::int64_t negative[] = {5, 2, 3, -1, 1};
  const auto scatter = [&](const at::Tensor& output, const at::Tensor& input,
                           std::span<const std::int64_t> parts = {}) {
    return refusal(
        [&] { (void)group.reduce_scatter(output, input, ReduceOp::kSum, kCall, parts); });
  };
  EXPECT_EQ(scatter(two, ten), "accepted");
  EXPECT_EQ(scatter(at::zeros({3}), ten, counts), "accepted");
  EXPECT_THAT(scatter(two, at::zeros({11})), HasSubstr("11 elements are not 5 equal parts"));
  EXPECT_THAT(scatter(at::zeros({4}), ten), HasSubstr("the output has 4 elements instead of 2"));
  EXPECT_THAT(scatter(two, ten, counts), HasSubstr("the output has 2 elements instead of 3"));
  EXPECT_THAT(scatter(two, ten, four_counts), HasSubstr("4 counts for 5 members"));
  EXPECT_THAT(scatter(two, ten, negative), HasSubstr("negative counts: -1"));
  EXPECT_THAT(scatter(two, at::zeros({12}), counts),
              HasSubstr("the input has 12 elements instead of 10"));
  EXPECT_THAT(scatter(at::zeros({2}, at::kDouble), ten),
              HasSubstr("the output has dtype Double, the input Float"));
  EXPECT_THAT(refusal([&] { (void)group.all_gather(ten, at::zeros({3}), kCall); }),
              HasSubstr("the input has 3 elements instead of 2"));
  EXPECT_THAT(refusal([&] { (void)group.all_to_all(ten, counts, ten.clone(), negative, kCall); }),
              HasSubstr("negative input counts"));
}

TEST(Group, RefusesStrangers) {
  const Group group = fake_group();
  const at::Tensor tensor = at::zeros({2});
  EXPECT_THAT(refusal([&] { (void)group.broadcast(tensor, 5, kCall); }),
              HasSubstr("the root 5 is not a member: the group has 5"));
  const Transfer transfer{Transfer::Direction::kSend, -1, tensor};
  EXPECT_THAT(refusal([&] {
                (void)group.exchange({&transfer, 1}, kCall);
              }),
              HasSubstr("the peer -1 is not a member"));
  const Transfer to_itself{Transfer::Direction::kSend, 2, tensor};
  EXPECT_THAT(refusal([&] {
                (void)group.exchange({&to_itself, 1}, kCall);
              }),
              HasSubstr("1 sends to this member itself, and 0 receives"));
}

TEST(Group, RefusesOverlapButForTheOwnPart) {
  const Group group = fake_group();
  const at::Tensor ten = at::zeros({10});
  const auto scatter_to = [&](std::int64_t start) {
    return refusal(
        [&] { (void)group.reduce_scatter(ten.narrow(0, start, 2), ten, ReduceOp::kSum, kCall); });
  };
  EXPECT_EQ(scatter_to(4), "accepted");
  EXPECT_THAT(scatter_to(3), HasSubstr("overlap"));
  EXPECT_THAT(scatter_to(0), HasSubstr("overlap"));
  const std::int64_t counts[] = {2, 2, 2, 2, 2};
  EXPECT_THAT(refusal([&] { (void)group.all_to_all(ten, counts, ten, counts, kCall); }),
              HasSubstr("overlap"));
}

TEST(Group, RefusesAnExchangeThatReceivesIntoItsOtherTensors) {
  using enum Transfer::Direction;
  const Group group = fake_group();
  const at::Tensor ten = at::zeros({10});
  const auto exchange = [&](const Transfer& one, const Transfer& other) {
    const Transfer transfers[] = {one, other};
    return refusal([&] { (void)group.exchange(transfers, kCall); });
  };
  EXPECT_EQ(
      exchange({kSend, 1, ten}, {kReceive, 3, ten}),
      "exchange 'label': the tensor received from member 3 overlaps the one sent to member 1");
  EXPECT_THAT(exchange({kReceive, 1, ten.narrow(0, 0, 6)}, {kReceive, 3, ten.narrow(0, 5, 5)}),
              HasSubstr("from member 3 overlaps the one received from member 1"));
  EXPECT_THAT(exchange({kSend, 2, ten}, {kReceive, 2, ten}), HasSubstr("overlaps"));
  EXPECT_EQ(exchange({kSend, 1, ten}, {kSend, 3, ten}), "accepted");
  EXPECT_EQ(exchange({kReceive, 1, ten.narrow(0, 0, 5)}, {kReceive, 3, ten.narrow(0, 5, 5)}),
            "accepted");
  EXPECT_EQ(exchange({kSend, 1, ten.narrow(0, 5, 0)}, {kReceive, 3, ten}), "accepted");
}

}  // namespace
}  // namespace troika
