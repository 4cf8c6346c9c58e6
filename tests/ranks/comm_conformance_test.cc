// What every engine must do, on every engine that this machine can use. Each function does many
// checks, since starting processes takes longer than the checks do.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ranks/comm_checks.h"
#include "ranks/comm_inputs.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

// More than is reduced at once, and more than one segment of a broadcast; a multiple of nothing.
constexpr std::int64_t kLarge = 300'007;
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};

bool defined_for(ReduceOp op, at::ScalarType dtype) {
  return op != ReduceOp::kAverage || at::isFloatingType(dtype);
}

// 0, 1, 2, ..., over and over with a period that is no block's size, so that blocks which are
// swapped or repeated show. Times small numbers, sums of them are exact.
at::Tensor ramp(std::int64_t elements) {
  return at::arange(elements, at::kInt).remainder_(65'521).to(at::kFloat);
}

RANK_FUNCTION(reductions) {
  const Group group = rank.group();
  Memory memory(group);
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!defined_for(op, dtype)) continue;
      check_all_reduce(rank, memory, 1000, dtype, op);
      check_reduce_scatter(rank, memory, uneven_counts(rank.size(), 1000), dtype, op);
    }
    for (const std::int64_t elements : {0, 1, 7}) {
      check_all_reduce(rank, memory, elements, dtype, ReduceOp::kSum);
    }
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kInt}) {
    check_all_reduce(rank, memory, 150'001, dtype, ReduceOp::kSum);
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    check_all_reduce(rank, memory, kLarge, dtype, ReduceOp::kAverage);
    check_reduce_scatter(rank, memory, uneven_counts(rank.size(), 100'000), dtype,
                         ReduceOp::kAverage);
  }
  if (rank.size() == 2) {  // several blocks
    const at::Tensor pattern = ramp(5'000'003);
    const at::Tensor tensor = pattern * (rank.index() + 1.5);
    group.all_reduce(tensor, ReduceOp::kSum, Rank::call("several blocks")).wait();
    EXPECT_TRUE(identical(tensor, pattern * 4));
  }
  at::Tensor output = at::empty({5});
  const at::Tensor input = input_of(rank.index(), 5 * rank.size(), at::kFloat);
  group.reduce_scatter(output, input, ReduceOp::kSum, Rank::call("equal parts")).wait();
  const at::Tensor reduced =
      serial_reduce(all_inputs(rank.size(), 5 * rank.size(), at::kFloat), ReduceOp::kSum);
  EXPECT_TRUE(as_reduced(rank, output, reduced.narrow(0, 5 * rank.index(), 5)));
}

// The same bits on every rank, and when repeated; with sizes on all sides of where algorithms
// change.
RANK_FUNCTION(repeats) {
  const Group group = rank.group();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t elements : {5, 5'003, 70'001}) {
      at::Tensor first = input_of(rank.index(), elements, dtype), second = first.clone();
      group.all_reduce(first, ReduceOp::kAverage, Rank::call("once")).wait();
      group.all_reduce(second, ReduceOp::kAverage, Rank::call("again")).wait();
      EXPECT_TRUE(identical(first, second)) << elements << " of " << dtype;
      at::Tensor of_first = first.clone();
      group.broadcast(of_first, 0, Rank::call("of the first rank")).wait();
      EXPECT_TRUE(identical(first, of_first)) << elements << " of " << dtype;
    }
  }
}

// Memory as it comes: parts of larger tensors are right wherever they begin.
RANK_FUNCTION(odd_memory) {
  const Group group = rank.group();
  for (const std::int64_t start : {1, 3, 13}) {
    at::Tensor whole = at::full({1037}, 7, at::kFloat);
    at::Tensor inner = whole.narrow(0, start, 1001);
    inner.copy_(input_of(rank.index(), 1001, at::kFloat));
    group.all_reduce(inner, ReduceOp::kSum, Rank::call("inner")).wait();
    EXPECT_TRUE(as_reduced(
        rank, inner, serial_reduce(all_inputs(rank.size(), 1001, at::kFloat), ReduceOp::kSum)));
    EXPECT_TRUE(at::all(whole.narrow(0, 0, start) == 7).item<bool>());
    EXPECT_TRUE(at::all(whole.narrow(0, start + 1001, 36 - start) == 7).item<bool>());
    at::Tensor bytes = at::zeros({101}, at::kByte);
    at::Tensor odd = bytes.narrow(0, start, 55);
    odd.copy_(input_of(rank.index(), 55, at::kByte));
    group.broadcast(odd, rank.size() - 1, Rank::call("odd bytes")).wait();
    EXPECT_TRUE(identical(odd, input_of(rank.size() - 1, 55, at::kByte)));
    EXPECT_EQ(bytes[start + 55].item<int>(), 0);
  }
}

// 64 MB, and a little more, of what is not in large_movements.
RANK_FUNCTION(large) {
  const Group group = rank.group();
  const std::int64_t elements = (std::int64_t{16} << 20) + 3;
  const at::Tensor pattern = ramp(elements);
  const auto given_by = [&](int member) { return pattern * (member + 1.5); };
  const int last = rank.size() - 1;
  at::Tensor tensor = given_by(rank.index());
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("64 MB")).wait();
  EXPECT_TRUE(identical(tensor, pattern * (rank.size() * (rank.size() + 2) / 2.0)));
  tensor = given_by(rank.index());
  group.broadcast(tensor, last, Rank::call("64 MB")).wait();
  EXPECT_TRUE(identical(tensor, given_by(last)));

  // Two members' counts come to a third of what they are made of, more members' to more than all.
  const std::vector<std::int64_t> counts =
      uneven_counts(rank.size(), rank.size() == 2 ? 3 * elements : elements);
  const at::Tensor whole = ramp(sum(counts));
  const at::Tensor part = part_of(whole, counts, rank.index()).clone();
  EXPECT_GE(whole.nbytes(), std::size_t{64} << 20);
  at::Tensor all = at::empty_like(whole);
  group.all_gather(all, part, Rank::call("64 MB"), counts).wait();
  EXPECT_TRUE(identical(all, whole));
  all.mul_(rank.index() + 1.5);
  group.reduce_scatter(part, all, ReduceOp::kMax, Rank::call("64 MB"), counts).wait();
  EXPECT_TRUE(identical(part, part_of(whole, counts, rank.index()) * (last + 1.5)));
}

// What moves bytes, 64 MB and a little more from each member.
RANK_FUNCTION(large_movements) {
  using enum Transfer::Direction;
  const Group group = rank.group();
  const int own = rank.index(), size = rank.size(), last = size - 1;
  const std::int64_t elements = (std::int64_t{16} << 20) + 3;
  const at::Tensor pattern = ramp(elements);
  const auto given_by = [&](int member) { return pattern * (member + 1.5); };
  const at::Tensor given = given_by(own);
  // Member 0 gets a third of what each gives, the others get equal parts of the rest.
  std::vector<std::int64_t> sent(static_cast<std::size_t>(size), (elements - elements / 3) / last);
  sent[0] = elements - sum(sent) + sent[0];
  const std::int64_t each = sent[static_cast<std::size_t>(own)];
  at::Tensor output = at::zeros({each * size});
  group
      .all_to_all(output, std::vector<std::int64_t>(sent.size(), each), given, sent,
                  Rank::call("64 MB"))
      .wait();
  for (int member = 0; member < size; ++member) {
    EXPECT_TRUE(identical(output.narrow(0, member * each, each),
                          part_of(pattern, sent, own) * (member + 1.5)))
        << "from member " << member;
  }

  at::Tensor received = at::zeros({elements});
  const int next = (own + 1) % size, previous = (own + last) % size;
  const Transfer transfers[] = {{kSend, next, given}, {kReceive, previous, received}};
  group.exchange(transfers, Rank::call("64 MB")).wait();
  EXPECT_TRUE(identical(received, given_by(previous)));

  const at::Tensor all = own == last ? at::zeros({size, elements}) : at::Tensor();
  group.gather(all, given, last, Rank::call("64 MB")).wait();
  for (int member = 0; own == last && member < size; ++member) {
    EXPECT_TRUE(identical(all[member], given_by(member))) << "from member " << member;
  }
  received.zero_();
  group.scatter(received, all, last, Rank::call("64 MB")).wait();
  EXPECT_TRUE(identical(received, given));
}

RANK_FUNCTION(special_values) {
  const Group group = rank.group();
  const double nan = std::nan("");
  const double inf = INFINITY;
  at::Tensor values = at::full({3}, rank.index(), at::kDouble);
  if (rank.index() == rank.size() - 1) values[0] = nan;
  if (rank.index() == 0) values[1] = inf;
  for (const ReduceOp op : kOps) {
    at::Tensor tensor = values.clone();
    group.all_reduce(tensor, op, Rank::call("special values")).wait();
    EXPECT_TRUE(std::isnan(tensor[0].item<double>())) << static_cast<int>(op);
    const bool infinite = std::isinf(tensor[1].item<double>());
    EXPECT_EQ(infinite, op != ReduceOp::kMin || rank.size() == 1) << static_cast<int>(op);
  }
  // A scalar, and a tensor that autograd watches.
  at::Tensor scalar = at::tensor(2.5).requires_grad_(true);
  group.all_reduce(scalar, ReduceOp::kSum, Rank::call("scalar")).wait();
  EXPECT_EQ(scalar.item<double>(), 2.5 * rank.size());
}

// More ranks than cores, on every operation: the first three of nine, and more of them in turn.
RANK_FUNCTION(many_ranks) {
  rank.group().barrier(Rank::call("all are here")).wait();  // MPI starts only with all of its job
  std::vector<int> members = {0, 1};
  for (int size = 3; size <= rank.size(); ++size) {
    members.push_back(size - 1);
    if (rank.index() >= size) continue;
    const Group group = make_group("data", members, rank.index(), rank.options());
    Memory memory(group);
    check_all_reduce(rank, memory, 997, at::kFloat, ReduceOp::kAverage);
    check_all_reduce(rank, memory, 20'001, at::kBFloat16, ReduceOp::kSum);
    check_reduce_scatter(rank, memory, uneven_counts(size, 5'003), at::kDouble, ReduceOp::kSum);
    check_gathering(memory, 1'001, at::kInt);
    check_all_to_all(memory, 101, at::kHalf);
    check_rooted(memory, 1'003, at::kLong, size / 2);
    check_ring(memory, 1'001, at::kBFloat16);
    group.barrier(Rank::call("together")).wait();
  }
}

RANK_FUNCTION(movements) {
  Memory memory(rank.group());
  for (const at::ScalarType dtype : kDtypes) {
    check_gathering(memory, 5, dtype);
    check_all_to_all(memory, 5, dtype);
    check_rooted(memory, 5, dtype, rank.size() - 1);
    check_ring(memory, 5, dtype);
  }
  for (const std::int64_t elements : {0, 1, 20'001}) {
    check_gathering(memory, elements, at::kDouble);
    check_all_to_all(memory, elements, at::kBFloat16);
    for (int root = 0; root < rank.size(); ++root) check_rooted(memory, elements, at::kByte, root);
  }
  check_gathering(memory, kLarge, at::kFloat);
  check_rooted(memory, kLarge, at::kDouble, rank.size() - 1);
}

RANK_FUNCTION(exchanges) {
  using enum Transfer::Direction;
  const Group group = rank.group();
  Memory memory(group);
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{5}, kLarge}) {
    check_ring(memory, elements);  // also from a member to itself
  }
  if (rank.size() == 1) return;
  // Only two take part, each sending before it receives, in operations of their own that are waited
  // for in the reverse order.
  if (rank.index() < 2) {
    const int peer = 1 - rank.index();
    const at::Tensor sent = input_of(rank.index(), kLarge, at::kDouble);
    at::Tensor received = at::zeros({kLarge}, at::kDouble);
    const Transfer send{kSend, peer, sent};
    const Transfer receive{kReceive, peer, received};
    const Work sending = group.exchange({&send, 1}, Rank::call("out"));
    const Work receiving = group.exchange({&receive, 1}, Rank::call("in"));
    receiving.wait();
    sending.wait();
    EXPECT_TRUE(identical(received, input_of(peer, kLarge, at::kDouble)));
  }
}

RANK_FUNCTION(barriers) {
  const Group group = rank.group();
  for (int round = 0; round < 20; ++round) {
    const std::string key = "entered/" + std::to_string(round);
    (void)rank.store().add(key, 1);
    group.barrier(Rank::call("barrier")).wait();
    EXPECT_EQ(rank.store().add(key, 0), rank.size()) << "round " << round;
  }
}

RANK_FUNCTION(overlap) {
  const Group group = rank.group();
  const Group other = rank.group("other");
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(ramp(i * 997) + i + rank.index());
    const Group& chosen = i % 3 == 0 ? other : group;
    Work work = chosen.all_reduce(tensors.back(), ReduceOp::kSum, Rank::call("overlapping"));
    if (i % 5 != 0) works.push_back(work);  // the others go on without a handle
  }
  group.barrier(Rank::call("after group")).wait();
  other.barrier(Rank::call("after other")).wait();
  for (const Work& work : works) EXPECT_TRUE(work.done());
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  const double ranks = rank.size();
  for (int i = 0; i < 40; ++i) {
    const at::Tensor expected = (ramp(i * 997) + i) * ranks + ranks * (ranks - 1) / 2;
    EXPECT_TRUE(identical(tensors[static_cast<std::size_t>(i)], expected)) << i;
  }
}

// What a member gives to one of many operations: whose largest value it is differs by element.
at::Tensor given_to(std::size_t operation, int member, std::int64_t elements) {
  const auto start = 31 * member + 7 * static_cast<std::int64_t>(operation);
  return at::arange(start, start + elements, at::kInt).remainder_(251).to(at::kFloat);
}

at::Tensor result_of(std::size_t operation, int members, std::int64_t elements) {
  const int root = static_cast<int>(operation) % members;
  if (operation % 3 == 0) return given_to(operation, root, elements);
  std::vector<at::Tensor> inputs;
  for (int member = 0; member < members; ++member) {
    inputs.push_back(given_to(operation, member, elements));
  }
  return serial_reduce(inputs, ReduceOp::kMax);
}

// More under way than an engine may have room for, and members that wait in different orders.
RANK_FUNCTION(many_under_way) {
  const Group group = rank.group();
  const Group other = rank.group("other");
  for (const std::int64_t count : {std::int64_t{3}, std::int64_t{24'000}, std::int64_t{200'000}}) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (std::size_t i = 0; i < (count > 100'000 ? 21u : 150u); ++i) {
      tensors.push_back(given_to(i, rank.index(), i % 2 == 0 ? count : 5));
      const int root = static_cast<int>(i) % rank.size();
      works.push_back(i % 3 == 0
                          ? group.broadcast(tensors.back(), root, Rank::call("many"))
                          : group.all_reduce(tensors.back(), ReduceOp::kMax, Rank::call("many")));
    }
    if (rank.index() % 2 == 0) works.back().wait();
    other.barrier(Rank::call("another group")).wait();
    for (const Work& work : works) work.wait();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(identical(tensors[i], result_of(i, rank.size(), tensors[i].numel()))) << i;
    }
  }
}

// Two generations of a group, in which members start what they do in different orders: a tensor
// that fits into a slot, or one that does not.
void check_generations(const Rank& rank, const Group& sample) {
  EngineOptions options = rank.options();
  options.generation = 1;
  const Group first = make_group("data", sample.ranks(), rank.index(), options);
  options.generation = 2;
  const Group second = make_group("data", sample.ranks(), rank.index(), options);
  for (const std::int64_t elements : {std::int64_t{3}, kLarge}) {
    const at::Tensor ones = at::full({elements}, rank.index() + 1.0);
    const at::Tensor tens = ones * 10;
    const auto start = [&](const Group& group, const at::Tensor& tensor) {
      return group.all_reduce(tensor, ReduceOp::kSum, Rank::call("crosswise"));
    };
    const bool even = rank.index() % 2 == 0;
    const Work one = even ? start(first, ones) : start(second, tens);
    const Work other = even ? start(second, tens) : start(first, ones);
    one.wait();
    other.wait();
    const double total = rank.size() * (rank.size() + 1) / 2.0;
    EXPECT_TRUE(identical(ones, at::full({elements}, total))) << elements;
    EXPECT_TRUE(identical(tens, at::full({elements}, 10 * total))) << elements;
  }
}

// Two groups over the same ranks and axis, made one after the other, are apart; so are sub-groups.
RANK_FUNCTION(several_groups) {
  const Group first = rank.group();
  const Group second = rank.group();
  const bool even = rank.index() % 2 == 0;
  std::vector<int> ranks;
  for (int i = even ? 0 : 1; i < rank.size(); i += 2) ranks.push_back(i);
  const Group sub = make_group("tensor", ranks, rank.index() / 2, rank.options());
  at::Tensor tensor = at::ones({1});
  const Work in_second = second.all_reduce(tensor, ReduceOp::kSum, Rank::call("second"));
  in_second.wait();
  first.all_reduce(tensor, ReduceOp::kSum, Rank::call("first")).wait();
  EXPECT_EQ(tensor.item<double>(), rank.size() * rank.size());
  at::Tensor parity = at::full({1}, rank.index());
  sub.all_reduce(parity, ReduceOp::kMax, Rank::call("sub-group")).wait();
  EXPECT_EQ(parity.item<double>(), ranks.back());
  check_generations(rank, first);
}

// Rank 0 asks for generation 1 while the others ask for generation 2. They do not meet, although it
// is the second group of the same ranks and axis for each of them; and the attempt of rank 0 does
// not count in generation 2, where all meet.
RANK_FUNCTION(generations_apart) {
  const Group all = rank.group();  // MPI starts only with all of its job
  EngineOptions options = rank.options();
  rank.wait_for_all("about to make groups");
  if (rank.index() == 0) {
    options.generation = 1;
    options.rendezvous_timeout = Seconds(0.3);
    try {
      (void)make_group("data", all.ranks(), rank.index(), options);
      ADD_FAILURE() << "generation 1 has met generation 2";
    } catch (const RendezvousError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("did not come to connect axis data (ranks 0"));
    }
  }
  options.generation = 2;
  options.rendezvous_timeout = Seconds(30);
  const Group group = make_group("data", all.ranks(), rank.index(), options);
  EXPECT_EQ(group.generation(), 2u);
  const at::Tensor tensor = at::full({3}, rank.index() + 1.0);
  group.all_reduce(tensor, ReduceOp::kSum, Rank::call("together")).wait();
  EXPECT_TRUE(identical(tensor, at::full({3}, rank.size() * (rank.size() + 1) / 2.0)));
}

using Conformance = OnEngine;

TEST_P(Conformance, Reductions) {
  expect("reductions", {1, 2, 5});
}
TEST_P(Conformance, SpecialValues) {
  expect("special_values", {1, 2});
}
TEST_P(Conformance, Movements) {
  expect("movements", {1, 2, 5});
}
TEST_P(Conformance, Exchanges) {
  expect("exchanges", {1, 2, 3});
}
TEST_P(Conformance, Barriers) {
  expect("barriers", {2, 5});
}
TEST_P(Conformance, Overlap) {
  expect("overlap", {2, 3});
}
TEST_P(Conformance, ManyUnderWay) {
  expect("many_under_way", {2, 3});
}
TEST_P(Conformance, SeveralGroups) {
  expect("several_groups", {4});
}
TEST_P(Conformance, GenerationsDoNotMeet) {
  expect("generations_apart", {2});
}

TEST_P(Conformance, Repeats) {
  expect("repeats", {4});
}
TEST_P(Conformance, OddMemory) {
  expect("odd_memory", {3});
}
TEST_P(Conformance, SixtyFourMegabytes) {
  expect("large", {2, 3});
}
TEST_P(Conformance, SixtyFourMegabytesMoved) {
  expect("large_movements", {2});
}
TEST_P(Conformance, ThreeToNineRanks) {
  expect("many_ranks", {9});
}

INSTANTIATE_TEST_SUITE_P(Engines, Conformance, testing::ValuesIn(tested_engines()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
