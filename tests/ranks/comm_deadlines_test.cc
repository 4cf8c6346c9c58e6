// Each operation keeps its own deadline when a rank does not enter it, and ends before that where
// its group is aborted, on every engine.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/observe/machine.h>

#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ranks/comm_failures.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// For each way in which an engine goes about a tensor: so many elements, and the time until what
// they take is long over.
struct Size {
  std::int64_t elements;
  Seconds timeout;
};
constexpr Size kSmallSize{1'000, Seconds(0.3)}, kLargeSize{400'000, Seconds(1)};

// An operation in which rank 0 needs something of rank 1.
struct Operation {
  std::string_view name;
  std::function<Work(const Group& group, const Call& call)> start;
};

std::vector<Operation> operations(std::int64_t elements = kSmallSize.elements) {
  const auto tensor = [=] { return at::ones({elements}); };
  const auto of_all = [=](const Group& group) { return at::ones({group.size(), elements}); };
  return {
      {"all_reduce",
       [=](const Group& group, const Call& call) {
         return group.all_reduce(tensor(), ReduceOp::kSum, call);
       }},
      {"reduce_scatter",
       [=](const Group& group, const Call& call) {
         return group.reduce_scatter(tensor(), of_all(group), ReduceOp::kSum, call);
       }},
      {"all_gather",
       [=](const Group& group, const Call& call) {
         return group.all_gather(of_all(group), tensor(), call);
       }},
      {"all_to_all",
       [=](const Group& group, const Call& call) {
         const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), elements);
         return group.all_to_all(of_all(group), counts, of_all(group), counts, call);
       }},
      {"broadcast",
       [=](const Group& group, const Call& call) { return group.broadcast(tensor(), 1, call); }},
      {"gather", [=](const Group& group,
                     const Call& call) { return group.gather(of_all(group), tensor(), 0, call); }},
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
  std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group("data", ranks, rank.index(), options);
}

// How an operation that a rank has entered ends there, and when.
void report_end(const Rank& rank, const Operation& operation, const Group& group) {
  const Seconds timeout(std::stod(rank.argument("timeout")));
  const auto start = Clock::now();
  std::string how = "nothing", told;
  // Not by the call, which does not wait.
  const Work work = operation.start(group, Rank::call("alone", timeout));
  try {
    work.wait();
  } catch (const DeadlineError& error) {
    how = "DeadlineError";
    told = error.what();
  } catch (const PeerError& error) {
    how = "PeerError";
    told = error.what();
  }
  const std::string name(operation.name);
  rank.report(name, how);
  rank.report(name + " message", told);
  rank.report(name + " seconds", std::to_string(Seconds(Clock::now() - start).count()));
}

// All but rank 1 enter. Each operation is in a group of its own, which is unusable afterwards.
RANK_FUNCTION(enters_nothing) {
  std::uint64_t generation = 0;
  for (const Operation& operation : operations(std::stol(rank.argument("elements")))) {
    const Group group = group_of_generation(rank, ++generation);
    if (rank.index() != 1) report_end(rank, operation, group);
    rank.wait_for_all("after " + std::string(operation.name));
  }
}

// Rank 0 alone enters, with a minute, and another of its threads aborts the group. The others hold
// theirs until then: to leave it would end the operation, too.
RANK_FUNCTION(aborts_each_operation) {
  std::uint64_t generation = 0;
  for (const Operation& operation : operations()) {
    const std::string name(operation.name);
    const Group group = group_of_generation(rank, ++generation);
    if (rank.index() == 0) {
      const Work work = operation.start(group, Rank::call("alone", Seconds(60)));
      EXPECT_FALSE(work.done()) << name;
      std::thread other([&] { group.abort("the loss is not finite"); });
      report_error(rank, name, [&] { work.wait(); });
      other.join();
      EXPECT_TRUE(work.done()) << name;
    }
    rank.wait_for_all("after " + name);
  }
}

// Rank 0 aborts as soon as it is connected: the others are to be connected by then.
RANK_FUNCTION(aborts_at_once) {
  for (std::uint64_t generation = 1; generation <= 8; ++generation) {
    const Group group = group_of_generation(rank, generation);
    if (rank.index() == 0) group.abort("the table has no rows");
    report_error(rank, "error", [&] { group.barrier(Rank::call("first")).wait(); });
    rank.wait_for_all("after " + std::to_string(generation));
  }
}

// Rank 1 waits for rank 3, which does not come; rank 0, which has nothing to do with it, aborts.
RANK_FUNCTION(aborts_for_others) {
  const Transfer receive{Transfer::Direction::kReceive, 3, at::ones({5})};
  std::uint64_t generation = 0;
  for (const std::string name : {"exchange", "barrier"}) {
    const Group group = group_of_generation(rank, ++generation);
    if (rank.index() == 1) {
      const Call call = Rank::call("alone", Seconds(60));
      const Work work =
          name == "barrier" ? group.barrier(call) : group.exchange({&receive, 1}, call);
      rank.store().set(name + " waits", "");
      report_error(rank, name, [&] { work.wait(); });
    } else if (rank.index() == 0) {
      (void)rank.store().get(name + " waits", Deadline::in(Seconds(30)));
      group.abort("the loss is not finite");
    }
    rank.wait_for_all("after " + name);
  }
}

class Deadlines : public testing::TestWithParam<TestedEngine> {};

void expect_deadlines(const TestedEngine& engine, const Size& each) {
  const int size = engine.sizes.empty() ? 2 : engine.sizes.front();
  RankOptions options = engine.options;
  options.arguments["elements"] = std::to_string(each.elements);
  options.arguments["timeout"] = std::to_string(each.timeout.count());
  const auto results = expect_ranks("enters_nothing", size, options);
  for (const Operation& operation : operations()) {
    const std::string name(operation.name);
    std::string hows;
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == 1) continue;
      const auto& values = results[rank].values;
      hows += values.at(name) + " ";
      EXPECT_LT(std::stod(values.at(name + " seconds")), kSoon)
          << name << " on rank " << rank << ": " << values.at(name + " message");
      if (rank != 0) continue;
      EXPECT_THAT(values.at(name + " message"),
                  AllOf(HasSubstr("rank 1 (host " + host_name() + ", pid "),
                        HasSubstr(name + " 'alone'"), HasSubstr(" waited ")));
    }
    EXPECT_THAT(hows, HasSubstr("DeadlineError")) << name;
    if (size > 2) continue;  // among more, the first rank to fail tells the others
    EXPECT_THAT(results[0].values.at(name + " message"),
                HasSubstr("waited " + format_duration(each.timeout.count())));
    EXPECT_GT(std::stod(results[0].values.at(name + " seconds")), 0.8 * each.timeout.count())
        << name;
  }
}

TEST_P(Deadlines, OfEveryOperationThatARankDoesNotEnter) {
  expect_deadlines(GetParam(), kSmallSize);
}
TEST_P(Deadlines, OfEveryLargeOperation) {
  expect_deadlines(GetParam(), kLargeSize);
}

INSTANTIATE_TEST_SUITE_P(Engines, Deadlines, testing::ValuesIn(tested_engines()),
                         [](const auto& info) { return info.param.name; });

class Aborts : public testing::TestWithParam<TestedEngine> {};

TEST_P(Aborts, EndEveryOperationFromAnotherThread) {
  const TestedEngine& engine = GetParam();
  const int size = engine.sizes.empty() ? 2 : engine.sizes.front();
  const auto results = expect_ranks("aborts_each_operation", size, engine.options);
  const auto& values = results[0].values;
  for (const Operation& operation : operations()) {
    const std::string name(operation.name);
    EXPECT_EQ(values.at(name), "PeerError") << name;
    EXPECT_THAT(values.at(name + " message"),
                HasSubstr(name + " 'alone' on axis data: the loss is not finite"));
    EXPECT_LT(std::stod(values.at(name + " seconds")), kSoon) << name;
  }
}

TEST_P(Aborts, AtOnceAreNotTakenForConnectionsThatFail) {
  const TestedEngine& engine = GetParam();
  const int size = engine.sizes.empty() ? 3 : engine.sizes.front();
  for (const RankResult& result : expect_ranks("aborts_at_once", size, engine.options)) {
    EXPECT_EQ(result.values.at("error"), "PeerError");
    EXPECT_THAT(result.values.at("error message"), HasSubstr("the table has no rows"));
  }
}

TEST_P(Aborts, AreHeardByThoseWhoWaitForOthers) {
  const TestedEngine& engine = GetParam();
  const auto& sizes = engine.sizes;
  const auto enough = std::ranges::find_if(sizes, [](int size) { return size >= 4; });
  const auto results =
      expect_ranks("aborts_for_others", enough == sizes.end() ? 4 : *enough, engine.options);
  const auto& values = results[1].values;
  for (const std::string name : {"exchange", "barrier"}) {
    EXPECT_EQ(values.at(name), "PeerError") << name;
    EXPECT_THAT(values.at(name + " message"), AllOf(HasSubstr(name + " 'alone' on axis data: "),
                                                    HasSubstr("the loss is not finite")));
    EXPECT_LT(std::stod(values.at(name + " seconds")), kSoon) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Aborts, testing::ValuesIn(tested_engines()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
