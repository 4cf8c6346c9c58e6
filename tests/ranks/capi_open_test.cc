// Sessions that do not open: for options that one rank has wrong, which all ranks hear of at once,
// and for ranks that do not come, which are named. A later try opens one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <chrono>
#include <functional>
#include <string>

#include "capi_helper.h"
#include "own_mpi.h"
#include "rank_helper.h"

namespace troika::test {
namespace {

using Clock = std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;

using OpenWith = std::function<int(const troika_options& options, troika_session** session)>;

struct WrongOption {
  std::function<void(troika_options& options)> set;
  std::string line;
};

const WrongOption kWrongOptions[] = {
    {[](troika_options& options) { options.engine = "gluu"; }, "no engine is called 'gluu'"},
    {[](troika_options& options) { options.engine = "nccl"; },
     "engine 'nccl' takes no arrays in host memory"},
    {[](troika_options& options) { options.timeout_seconds = -1; },
     "a time-out is negative, or no number"},
    {[](troika_options& options) { options.rendezvous_timeout_seconds = 1e300; },
     "a time-out of 1e+300 s is longer than 1e+07 s"},
    {[](troika_options& options) { options.threads = -2; }, "a negative number of threads: -2"},
    {[](troika_options& options) { options.threads = 100000; },
     "100000 threads are more than 16 for each core"},
};

void expect_sum(Rank& rank, troika_session* session) {
  double sum = rank.index() + 1;
  EXPECT_EQ(troika_all_reduce(session, &sum, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum"), TROIKA_OK)
      << troika_last_error();
  EXPECT_EQ(sum, rank.size() * (rank.size() + 1) / 2);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

troika_options patient_options() {
  troika_options options = {};
  options.timeout_seconds = options.rendezvous_timeout_seconds = 60;
  return options;
}

// All ranks are told at once, whoever is wrong: rank 0, which keeps the store, or another.
void open_with_options_that_one_rank_has_wrong(Rank& rank, const OpenWith& open) {
  for (const WrongOption& option : kWrongOptions) {
    for (const int wrong : {0, rank.size() - 1}) {
      const auto start = Clock::now();
      troika_options options = patient_options();
      if (rank.index() == wrong) option.set(options);
      int no_session = 0;
      auto* session = reinterpret_cast<troika_session*>(&no_session);
      EXPECT_EQ(open(options, &session), TROIKA_USAGE);
      EXPECT_EQ(session, nullptr);
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(20)) << option.line;
      const std::string line = troika_last_error();
      if (rank.index() == wrong) {
        EXPECT_EQ(line, option.line);
      } else {
        EXPECT_THAT(line, StartsWith("rank " + std::to_string(wrong) + " on host "));
        EXPECT_THAT(line, testing::EndsWith(": " + option.line));
      }
      rank.wait_for_all(option.line + " on rank " + std::to_string(wrong));
    }
  }
  troika_session* session = nullptr;
  ASSERT_EQ(open(patient_options(), &session), TROIKA_OK) << troika_last_error();
  expect_sum(rank, session);
}

RANK_TEST(CApiOpen, OptionsThatOneRankHasWrongAreToldToAll, 3) {
  open_with_options_that_one_rank_has_wrong(
      rank, [&](const troika_options& options, troika_session** session) {
        const auto reserved = set_world(rank);
        return troika_open(&options, session);
      });
}

// What is right on each rank, and not the same.
void open_with_another_engine(Rank& rank, const OpenWith& open) {
  troika_options options = patient_options();
  options.engine = rank.index() == 1 ? "gloo" : "shm";
  troika_session* session = nullptr;
  EXPECT_EQ(open(options, &session), TROIKA_RENDEZVOUS);
  EXPECT_THAT(std::string(troika_last_error()),
              HasSubstr("rank 1 disagrees with rank 0 on the options of the session: "
                        "troika_options.engine is \"shm\" on rank 0 and \"gloo\" on rank 1"));
  EXPECT_EQ(session, nullptr);
  rank.wait_for_all("both have another engine");
}

// Rank 1 comes when the others have given up.
void miss_a_rank(Rank& rank, const OpenWith& open, const std::string& missed) {
  troika_options options = patient_options();
  options.rendezvous_timeout_seconds = 2;
  troika_session* session = nullptr;
  rank.wait_for_all("about to open");
  if (rank.index() == 1) rank.wait_for_all("the others have given up");
  EXPECT_EQ(open(options, &session), TROIKA_RENDEZVOUS);
  EXPECT_EQ(session, nullptr);
  if (rank.index() != 1) {
    EXPECT_THAT(std::string(troika_last_error()), StartsWith(missed));
    rank.wait_for_all("the others have given up");
  }
}

RANK_TEST(CApiOpen, ARankThatDoesNotComeIsNamed, 3) {
  const auto open = [&](const troika_options& options, troika_session** session) {
    static const auto reserved = set_world(rank);
    return troika_open(&options, session);
  };
  miss_a_rank(rank, open, "rank 1 of 3 has not come after 2 s");
}

RANK_FUNCTION(does_not_open_over_mpi) {
  const OwnMpi mpi(OwnMpi::Threads::kAll);
  const auto open_on = [](int communicator) {
    return [communicator](const troika_options& options, troika_session** session) {
      return troika_open_mpi(communicator, &options, session);
    };
  };
  open_with_options_that_one_rank_has_wrong(rank, open_on(mpi.world()));
  open_with_another_engine(rank, open_on(mpi.world()));
  const int all = mpi.split(0, rank.index());
  miss_a_rank(rank, open_on(mpi.world()),
              "rank 1 of the communicator (3 ranks) has not come within 2.0 s");
  // What is left of it is on that communicator alone.
  troika_session* session = nullptr;
  const troika_options options = patient_options();
  ASSERT_EQ(troika_open_mpi(all, &options, &session), TROIKA_OK) << troika_last_error();
  expect_sum(rank, session);
}

class CApiOpenOverMpi : public testing::TestWithParam<TestedEngine> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CApiOpenOverMpi);

TEST_P(CApiOpenOverMpi, NamesWhoIsWrongOrMissing) {
  expect_ranks("does_not_open_over_mpi", 3, GetParam().options);
}

INSTANTIATE_TEST_SUITE_P(Flavours, CApiOpenOverMpi, testing::ValuesIn(tested_mpi_engines()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
