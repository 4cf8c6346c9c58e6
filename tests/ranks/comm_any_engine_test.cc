// What every engine must do whatever values come out: also `fake`, which has no peers that could
// give any.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/observe/recorder.h>

#include <numeric>

#include "ranks/comm_checks.h"
#include "ranks/comm_inputs.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

// Every operation, of every type and size, ends, changes no input and is counted; whatever values
// come out.
RANK_FUNCTION(every_operation) {
  using enum Transfer::Direction;
  const Group group = rank.group();
  const int own = rank.index(), size = rank.size(), next = (own + 1) % size;
  std::uint64_t given = 0;
  const auto finish = [&](const Work& work, const at::Tensor& input) {
    work.wait();
    EXPECT_TRUE(work.done());
    given += input.nbytes();
    EXPECT_EQ(group.input_bytes(), given);
  };
  const Call call = Rank::call("of every kind");
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t elements : {0, 1, 1'001, 100'003}) {
      const auto counts = uneven_counts(size, elements);
      const at::Tensor whole = input_of(own, sum(counts), dtype), before = whole.clone();
      at::Tensor part = part_of(before, counts, own).clone(), all = at::empty_like(whole);
      finish(group.all_reduce(all.copy_(whole), ReduceOp::kMax, call), all);
      finish(group.reduce_scatter(part, whole, ReduceOp::kSum, call, counts), whole);
      finish(group.all_gather(all, part, call, counts), part);
      const std::vector<std::int64_t> each(static_cast<std::size_t>(size), elements);
      const at::Tensor table = input_of(own, elements * size, dtype);
      at::Tensor received = at::empty_like(table), row = table.narrow(0, 0, elements).clone();
      finish(group.all_to_all(received, each, table, each, call), table);
      finish(group.gather(received, row, 0, call), row);
      finish(group.scatter(row, table, 0, call), own == 0 ? table : at::empty({0}));
      finish(group.broadcast(received, 0, call), own == 0 ? received : at::empty({0}));
      const at::Tensor sent = table.narrow(0, 0, elements);
      const Transfer ring[] = {{kSend, next, sent}, {kReceive, (own + size - 1) % size, row}};
      finish(group.exchange(ring, call), sent);
      EXPECT_TRUE(identical(whole, before));
      EXPECT_TRUE(identical(table, input_of(own, elements * size, dtype)));
    }
  }
  finish(group.barrier(call), at::empty({0}));
}

// What roots alone give or take, with as many elements as there must be: nothing else is wrong with
// it. Every rank is the root here, as no rank gets as far as to meet the others.
void check_refusals_of_roots(const Group& group) {
  const std::int64_t size = group.size();
  at::Tensor buffer = at::zeros({8 * size + 1}, at::kByte);
  at::Tensor crooked =
      at::from_blob(static_cast<char*>(buffer.data_ptr()) + 1, {size, 2}, at::kFloat);
  const Call call = Rank::call("refused");
  for (const at::Tensor& refused :
       {at::ones({6, size}).t(), at::ones({size, 6}).narrow(1, 0, 3), crooked}) {
    const at::Tensor part = at::ones({refused.numel() / size});
    EXPECT_THROW(group.gather(refused, part, group.rank(), call), UsageError);
    EXPECT_THROW(group.scatter(part, refused, group.rank(), call), UsageError);
  }
}

// What is not contiguous, or not aligned to its elements, is refused before anything is sent; so
// are sizes that do not fit together.
RANK_FUNCTION(refusals) {
  const Group group = rank.group();
  at::Tensor square = at::ones({4, 6});
  at::Tensor buffer = at::zeros({65}, at::kByte);
  at::Tensor crooked = at::from_blob(static_cast<char*>(buffer.data_ptr()) + 1, {8}, at::kFloat);
  const Call call = Rank::call("refused");
  for (const at::Tensor& refused : {square.t(), square.narrow(1, 0, 3), crooked}) {
    const std::int64_t elements = refused.numel();
    const at::Tensor same = at::ones({elements}), all = at::ones({elements * rank.size()});
    std::vector<std::int64_t> counts(static_cast<std::size_t>(rank.size()), 0);
    counts[static_cast<std::size_t>(rank.index())] = elements;
    const Transfer send{Transfer::Direction::kSend, 0, refused};
    const Transfer receive{Transfer::Direction::kReceive, 0, refused};
    EXPECT_THROW(group.all_reduce(refused, ReduceOp::kSum, call), UsageError);
    EXPECT_THROW(group.broadcast(refused, 0, call), UsageError);
    EXPECT_THROW(group.reduce_scatter(refused, all, ReduceOp::kSum, call), UsageError);
    EXPECT_THROW(group.reduce_scatter(same, refused, ReduceOp::kSum, call, counts), UsageError);
    EXPECT_THROW(group.all_gather(all, refused, call), UsageError);
    EXPECT_THROW(group.all_gather(refused, same, call, counts), UsageError);
    EXPECT_THROW(group.all_to_all(refused, counts, same, counts, call), UsageError);
    EXPECT_THROW(group.all_to_all(same, counts, refused, counts, call), UsageError);
    EXPECT_THROW(group.gather(all, refused, 0, call), UsageError);
    EXPECT_THROW(group.scatter(refused, all, 0, call), UsageError);
    EXPECT_THROW(group.exchange({&send, 1}, call), UsageError);
    EXPECT_THROW(group.exchange({&receive, 1}, call), UsageError);
  }
  check_refusals_of_roots(group);
  at::Tensor part = at::ones({4}), whole = at::ones({4 * rank.size() + 1});
  EXPECT_THROW(group.all_gather(whole, part, Rank::call("refused")), UsageError);
  EXPECT_THROW(group.reduce_scatter(part, whole, ReduceOp::kSum, Rank::call("refused")),
               UsageError);
  EXPECT_THROW(group.broadcast(part, rank.size(), Rank::call("refused")), UsageError);
  EXPECT_EQ(group.input_bytes(), 0u);
  group.barrier(Rank::call("still fine")).wait();
}

RANK_FUNCTION(accounting) {
  EngineOptions options = rank.options();
  const auto path = recorder_path(rank.folder(), rank.index());
  options.observers.recorder = Recorder::create(path, rank.index(), "here");
  options.generation = 7;
  std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
  std::iota(ranks.begin(), ranks.end(), 100);
  const Group group = make_group("data", ranks, rank.index(), options);
  EXPECT_EQ(group.generation(), 7u);
  EXPECT_EQ(group.ranks().front(), 100);
  EXPECT_EQ(group.input_bytes(), 0u);
  group.all_reduce(at::zeros({10}), ReduceOp::kSum, Rank::call("forty bytes")).wait();
  at::Tensor tensor = at::zeros({3}, at::kByte);
  group.broadcast(tensor, 0, Rank::call("three bytes")).wait();
  EXPECT_EQ(group.input_bytes(), 40u + (rank.index() == 0 ? 3u : 0u));

  const Recording recording = read_recorder(path);
  ASSERT_EQ(recording.operations.size(), 2u);
  const RecordedOperation& first = recording.operations[0];
  EXPECT_EQ(first.operation + " " + first.axis + " " + first.label, "all_reduce data forty bytes");
  EXPECT_EQ(first.bytes, 40u);
  EXPECT_EQ(first.state, RecordedOperation::State::kFinished);
  EXPECT_GE(first.finished, first.started);
  EXPECT_EQ(recording.operations[1].state, RecordedOperation::State::kFinished);
}

using OnAnyEngine = OnEngine;

TEST_P(OnAnyEngine, EveryOperation) {
  expect("every_operation", {2, 3});
}
TEST_P(OnAnyEngine, Refusals) {
  expect("refusals", {3});
}
TEST_P(OnAnyEngine, Accounting) {
  expect("accounting", {2});
}

std::vector<TestedEngine> tested_engines_and_fake() {
  std::vector<TestedEngine> engines = tested_engines();
  engines.push_back({"fake", {.engine = "fake"}});
  return engines;
}

INSTANTIATE_TEST_SUITE_P(Engines, OnAnyEngine, testing::ValuesIn(tested_engines_and_fake()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
