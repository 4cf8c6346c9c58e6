// Each operation keeps its own deadline when a rank does not enter it, on every engine of one host.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/observe/machine.h>

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kElements = 1'000;

// Rank 0's part of an operation of two in which it needs something of rank 1.
struct Operation {
  std::string_view name;
  std::function<Work(const Group& group, const Call& call)> start;
};

std::vector<Operation> operations() {
  const auto tensor = [] { return at::ones({kElements}); };
  const auto both = [] { return at::ones({2, kElements}); };
  const std::vector<std::int64_t> halves = {kElements / 2, kElements / 2};
  return {
      {"all_reduce",
       [=](const Group& group, const Call& call) {
         return group.all_reduce(tensor(), ReduceOp::kSum, call);
       }},
      {"reduce_scatter",
       [=](const Group& group, const Call& call) {
         return group.reduce_scatter(tensor(), both(), ReduceOp::kSum, call);
       }},
      {"all_gather", [=](const Group& group,
                         const Call& call) { return group.all_gather(both(), tensor(), call); }},
      {"all_to_all",
       [=](const Group& group, const Call& call) {
         return group.all_to_all(tensor(), halves, tensor(), halves, call);
       }},
      {"broadcast",
       [=](const Group& group, const Call& call) { return group.broadcast(tensor(), 1, call); }},
      {"gather", [=](const Group& group,
                     const Call& call) { return group.gather(both(), tensor(), 0, call); }},
      {"scatter", [=](const Group& group,
                      const Call& call) { return group.scatter(tensor(), at::Tensor(), 1, call); }},
      {"exchange",
       [=](const Group& group, const Call& call) {
         const Transfer receive{Transfer::Direction::kReceive, 1, tensor()};
         return group.exchange({&receive, 1}, call);
       }},
      {"barrier", [](const Group& group, const Call& call) { return group.barrier(call); }},
  };
}

Group group_of_generation(const Rank& rank, std::uint64_t generation) {
  EngineOptions options = rank.options();
  options.generation = generation;
  return make_group("data", {0, 1}, rank.index(), options);
}

// Each operation in a group of its own, since the group is unusable afterwards.
RANK_FUNCTION(enters_nothing) {
  std::uint64_t generation = 0;
  for (const Operation& operation : operations()) {
    const Group group = group_of_generation(rank, ++generation);
    if (rank.index() == 0) {
      const auto start = Clock::now();
      std::string told = "no error";
      // Not by the call, which does not wait.
      const Work work = operation.start(group, Rank::call("alone", Seconds(0.3)));
      try {
        work.wait();
      } catch (const DeadlineError& error) {
        told = error.what();
      }
      rank.report(std::string(operation.name), told);
      rank.report(std::string(operation.name) + " seconds",
                  std::to_string(Seconds(Clock::now() - start).count()));
    }
    rank.meet("after " + std::string(operation.name));
  }
}

class Deadlines : public testing::TestWithParam<EngineKind> {};

TEST_P(Deadlines, OfEveryOperationThatARankDoesNotEnter) {
  const auto results = expect_ranks("enters_nothing", 2, {.engine = GetParam()});
  for (const Operation& operation : operations()) {
    const std::string name(operation.name);
    EXPECT_THAT(results[0].values.at(name),
                AllOf(HasSubstr("rank 1 (host " + host_name() + ", pid "),
                      HasSubstr(name + " 'alone'"), HasSubstr("waited 300 ms")));
    const double seconds = std::stod(results[0].values.at(name + " seconds"));
    EXPECT_GT(seconds, 0.25) << name;
    EXPECT_LT(seconds, 4) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Deadlines, testing::ValuesIn(usable_engines()), engine_name);

}  // namespace
}  // namespace troika::test
