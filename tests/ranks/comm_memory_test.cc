// Memory of Group::allocate, and exchanges that are under way beside collectives: on every engine
// that this machine can use.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/observe/memory_counter.h>

#include <fstream>
#include <string>
#include <vector>

#include "ranks/comm_checks.h"
#include "ranks/comm_inputs.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using enum Transfer::Direction;

// Every operation, with 4, 40, 200 and 400 KB in a rank's smaller tensor, so that the larger
// ones are on all sides of where algorithms change; nothing is a multiple of anything.
RANK_FUNCTION(memory_of_the_group) {
  const Group group = rank.group();
  for (const Memory::Kind kind : {Memory::Kind::kGroup, Memory::Kind::kMixed}) {
    Memory memory(group, kind);
    for (const std::int64_t elements : {1'001, 10'007, 50'021, 100'003}) {
      check_all_reduce(rank, memory, elements, at::kFloat, ReduceOp::kSum);
      check_all_reduce(rank, memory, elements, at::kBFloat16, ReduceOp::kAverage);
      check_reduce_scatter(rank, memory, uneven_counts(rank.size(), elements), at::kFloat,
                           ReduceOp::kMax);
      check_gathering(memory, elements, at::kInt);
      check_all_to_all(memory, elements / rank.size(), at::kHalf);
      check_rooted(memory, elements, at::kFloat, rank.size() - 1);
      check_ring(memory, elements);
    }
  }
}

// Memory that is new in each operation, and gone after it.
RANK_FUNCTION(memory_comes_and_goes) {
  const Group group = rank.group();
  for (const std::int64_t elements : {1'001, 10'007, 100'003}) {
    for (int round = 0; round < 5; ++round) {
      const std::int64_t bytes = elements * 4 * (round + 1);
      const at::Tensor tensor = group.allocate(static_cast<std::size_t>(bytes)).view(at::kFloat);
      EXPECT_EQ(tensor.count_nonzero().item<int>(), 0);
      const at::Tensor part = tensor.narrow(0, elements * round, elements);
      part.copy_(input_of(rank.index() + round, elements, at::kFloat));
      group.broadcast(part, round % rank.size(), Rank::call("new memory")).wait();
      const at::Tensor expected = input_of(round % rank.size() + round, elements, at::kFloat);
      EXPECT_TRUE(identical(part, expected)) << elements << ", round " << round;
    }
  }
}

// While the others are elsewhere; in shared memory each is a file that is mapped.
RANK_FUNCTION(memory_in_many_pieces) {
  constexpr int kPieces = 1000;
  const Group group = rank.group();
  std::vector<at::Tensor> pieces;
  if (rank.index() == 0) {
    for (int i = 0; i < kPieces; ++i) pieces.push_back(group.allocate(4096));
    std::ifstream maps("/proc/self/maps");
    int files = 0;
    for (std::string line; std::getline(maps, line);) {
      files += line.find("/memfd:troika") != std::string::npos;
    }
    EXPECT_GE(files, kPieces);
  }
  rank.wait_for_all("allocated");
}

// A sum by all, in which values show that it is the right one.
void check_sum(const Rank& rank, const Group& group) {
  Memory memory(group);
  check_all_reduce(rank, memory, 1'001, at::kFloat, ReduceOp::kSum);
  check_all_reduce(rank, memory, 100'003, at::kFloat, ReduceOp::kSum);
}

// One rank asks for more than there is: it is told so, and nothing has happened to the group, nor
// to memory that it gives out later.
RANK_FUNCTION(memory_that_is_not_there) {
  const Group group = rank.group();
  if (rank.index() == 2) {
    constexpr std::size_t kTooMany = std::size_t{1} << 55;
    const std::int64_t before = cpu_tensor_bytes().live();
    try {
      (void)group.allocate(kTooMany);
      ADD_FAILURE() << "there is memory of that size";
    } catch (const StorageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("cannot reserve " + format_bytes(kTooMany)));
      EXPECT_NE(error.hint(), "");
    }
    EXPECT_EQ(cpu_tensor_bytes().live(), before);
  }
  check_sum(rank, group);
  Memory memory(group, Memory::Kind::kGroup);
  check_all_reduce(rank, memory, 100'003, at::kFloat, ReduceOp::kSum);
}

// Members 0 and 1 exchange messages of these sizes (in floats) in one exchange, of which the one
// ends before a sum by all, and the other is waited for after it only.
enum class Late { kSender, kReceiver };
void check_beside_a_sum(const Rank& rank, const Group& group, Late late,
                        const std::vector<std::int64_t>& sizes) {
  if (rank.index() > 1) {
    check_sum(rank, group);
    return;
  }
  const bool sends = rank.index() == 0;
  std::vector<at::Tensor> tensors;
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor values = input_of(static_cast<int>(i), sizes[i], at::kFloat);
    tensors.push_back(sends ? values : at::zeros_like(values));
    transfers.push_back({sends ? kSend : kReceive, sends ? 1 : 0, tensors.back()});
  }
  const Work work = group.exchange(transfers, Rank::call("beside a sum"));
  const bool waits = sends != (late == Late::kSender);
  if (waits) work.wait();
  check_sum(rank, group);
  work.wait();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const at::Tensor values = input_of(static_cast<int>(i), sizes[i], at::kFloat);
    EXPECT_TRUE(identical(tensors[i], values)) << i << " of " << sizes.size();
  }
}

// An exchange goes on while no thread waits for it.
RANK_FUNCTION(exchanges_beside_collectives) {
  const Group group = rank.group();
  constexpr std::int64_t kKilobyte = 256;  // in floats
  for (const Late late : {Late::kSender, Late::kReceiver}) {
    check_beside_a_sum(rank, group, late, {4 * kKilobyte});
    check_beside_a_sum(rank, group, late, {256 * kKilobyte});
    check_beside_a_sum(rank, group, late, {200 * kKilobyte, 200 * kKilobyte});
    check_beside_a_sum(rank, group, late, {100 * kKilobyte, 100 * kKilobyte + 1, 100 * kKilobyte});
    check_beside_a_sum(rank, group, late, {4'096 * kKilobyte});
  }
}

using OfTheGroup = OnEngine;

TEST_P(OfTheGroup, Memory) {
  expect("memory_of_the_group", {2, 5});
}
TEST_P(OfTheGroup, MemoryComesAndGoes) {
  expect("memory_comes_and_goes", {3});
}
TEST_P(OfTheGroup, MemoryThatIsNotThere) {
  expect("memory_that_is_not_there", {3});
}
TEST_P(OfTheGroup, ExchangesBesideCollectives) {
  expect("exchanges_beside_collectives", {2, 3});
}

INSTANTIATE_TEST_SUITE_P(Engines, OfTheGroup, testing::ValuesIn(tested_engines()),
                         [](const auto& info) { return info.param.name; });

TEST(SharedMemory, MayHaveManyPieces) {
  expect_ranks("memory_in_many_pieces", 3, {.engine = "shm"});
}

}  // namespace
}  // namespace troika::test
