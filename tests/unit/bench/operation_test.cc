// A result that is wrong fails the measurement. The engine `fake` gives such: it has no peer to
// exchange anything with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/bench/comm_bench.h>
#include <troika/comm/engines.h>

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kBytes = 64;

Group fake_group(int index) {
  return make_group("data", {0, 1}, index, {.engine = "fake"});
}

void run_once(BenchOperation operation, const Group& group, BenchMemory memory) {
  const auto benchmark = OperationBenchmark::make(operation, group, kBytes, memory);
  benchmark->prepare();
  benchmark->start({"bench", Deadline::in(Seconds(5))}).wait();
  benchmark->verify(1);
}

TEST(OperationBenchmark, RefusesAWrongResultOfEveryOperation) {
  for (const BenchOperationFacts& facts : bench_operations()) {
    // The root's tensor is right from the start in a broadcast, and no other rank gets what is
    // gathered.
    const int index = facts.operation == BenchOperation::kGather ? 0 : 1;
    for (const BenchMemory memory : {BenchMemory::kOwn, BenchMemory::kGroup}) {
      try {
        run_once(facts.operation, fake_group(index), memory);
        ADD_FAILURE() << facts.name << ": no error";
      } catch (const InternalError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(std::string(facts.name) + " of 64 bytes on engine fake"),
                          HasSubstr("a wrong result on rank " + std::to_string(index))));
      }
    }
  }
}

TEST(OperationBenchmark, AcceptsARightResult) {
  EXPECT_NO_THROW(run_once(BenchOperation::kBroadcast, fake_group(0), BenchMemory::kOwn));
  // Nothing comes out on a rank that is not the root.
  EXPECT_NO_THROW(run_once(BenchOperation::kGather, fake_group(1), BenchMemory::kOwn));
}

TEST(OperationBenchmark, RefusesAnOutputThatIsNotWritten) {
  const auto benchmark = OperationBenchmark::make(BenchOperation::kBroadcast, fake_group(1), kBytes,
                                                  BenchMemory::kOwn);
  benchmark->prepare();
  EXPECT_THROW(benchmark->verify(1), InternalError);
}

TEST(BenchComm, FailsWithAWrongResult) {
  CommBenchOptions options;
  options.sizes = {kBytes};
  options.budget = Seconds(0);
  EXPECT_THROW((void)bench_comm(fake_group(0), options), InternalError);
}

}  // namespace
}  // namespace troika
