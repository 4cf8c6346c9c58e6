// The C functions on several ranks: what reductions give, sessions on parts of an MPI job, and a
// rank that does not come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "capi_helper.h"
#include "own_mpi.h"
#include "rank_helper.h"
#include "support/caller_settings.h"

namespace troika::test {
namespace {

template <class Number>
using Numbers = std::vector<Number>;

// Ranks 0, 1 and 2 have 1, 2 and 6 of one number, and 5, -4 and 2 of another.
template <class Number>
void expect_reductions(troika_session* session, int rank, int type) {
  const Numbers<Number> one = {1, 2, 6}, other = {5, -4, 2};
  const auto place = static_cast<std::size_t>(rank);
  const auto reduce = [&](int reduction) {
    Numbers<Number> values = {one[place], other[place]};
    EXPECT_EQ(troika_all_reduce(session, values.data(), 2, type, reduction, "values"), TROIKA_OK)
        << troika_last_error();
    return values;
  };
  EXPECT_EQ(reduce(TROIKA_SUM), (Numbers<Number>{9, 3}));
  EXPECT_EQ(reduce(TROIKA_MAX), (Numbers<Number>{6, 5}));
  EXPECT_EQ(reduce(TROIKA_MIN), (Numbers<Number>{1, -4}));
  if (type == TROIKA_FLOAT || type == TROIKA_DOUBLE) {
    EXPECT_EQ(reduce(TROIKA_AVERAGE), (Numbers<Number>{3, 1}));
  }
  for (int root = 0; root < 3; ++root) {
    Numbers<Number> values = {one[place], other[place]};
    EXPECT_EQ(troika_broadcast(session, values.data(), 2, type, root, "values"), TROIKA_OK)
        << troika_last_error();
    const auto from = static_cast<std::size_t>(root);
    EXPECT_EQ(values, (Numbers<Number>{one[from], other[from]}));
  }
}

RANK_TEST(CApiRanks, ReductionsAndBroadcastsOfEveryType, 3) {
  troika_session* session = open_session(rank, 30);
  expect_reductions<float>(session, rank.index(), TROIKA_FLOAT);
  expect_reductions<double>(session, rank.index(), TROIKA_DOUBLE);
  expect_reductions<std::int32_t>(session, rank.index(), TROIKA_INT32);
  expect_reductions<std::int64_t>(session, rank.index(), TROIKA_INT64);
  std::int32_t whole = 1;
  EXPECT_EQ(troika_all_reduce(session, &whole, 1, TROIKA_INT32, TROIKA_AVERAGE, "whole"),
            TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("an average of int32"));
  EXPECT_EQ(troika_broadcast(session, &whole, 1, TROIKA_INT32, 3, "whole"), TROIKA_USAGE);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

// A recipe or an array that one rank has wrong is an error on all, in step with each other.
RANK_TEST(CApiRanks, WhatOneRankHasWrongIsAnErrorOnAll, 2) {
  constexpr const char* kRecipe =
      "[model]\nkind = \"mlp\"\ninput_dim = 1\nhidden_dims = [4]\noutput_dim = 1\n"
      "activation = \"tanh\"\nloss = \"mean_square\"\n[train]\nsteps = 5\n"
      "[optimizer]\nkind = \"sgd\"\nlr = 0.1\nwarmup_steps = 0\n";
  const bool wrong = rank.index() == 1;
  troika_session* session = open_session(rank, 30);
  troika_model* model = nullptr;
  const auto expect_told = [](int status, const char* words) {
    EXPECT_EQ(status, TROIKA_USAGE);
    EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr(words));
  };
  expect_told(troika_model_create(session, wrong ? nullptr : kRecipe, &model),
              "recipe is NULL, on rank 1");
  expect_told(troika_model_create_from_file(session, "/no/such/file", &model), "/no/such/file");
  ASSERT_EQ(troika_model_create(session, kRecipe, &model), TROIKA_OK) << troika_last_error();
  const double values[] = {0.5};
  double loss = 0;
  expect_told(troika_model_step(model, wrong ? nullptr : values, values, 1, TROIKA_DOUBLE, &loss),
              "inputs is NULL, on rank 1");
  expect_told(
      troika_model_loss(model, values, values, 1, wrong ? TROIKA_INT32 : TROIKA_DOUBLE, &loss),
      "models take TROIKA_FLOAT or TROIKA_DOUBLE, on rank 1");
  EXPECT_EQ(troika_model_step(model, values, values, 1, TROIKA_DOUBLE, &loss), TROIKA_OK)
      << troika_last_error();
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

// Two halves of a job, each with a session of its own at the same time, in the reverse order.
RANK_FUNCTION(opens_sessions_on_halves) {
  const OwnMpi mpi;
  const int color = rank.index() % 2;
  troika_session* session = nullptr;
  ASSERT_EQ(troika_open_mpi(mpi.split(color, -rank.index()), nullptr, &session), TROIKA_OK)
      << troika_last_error();
  int place = -1, size = -1;
  EXPECT_EQ(troika_rank(session, &place), TROIKA_OK);
  EXPECT_EQ(troika_size(session, &size), TROIKA_OK);
  EXPECT_EQ(size, 2);
  EXPECT_EQ(place, rank.index() < 2 ? 1 : 0);
  rank.wait_for_all("both are open");
  for (int round = 0; round < 100; ++round) {
    std::int64_t sum = rank.index() + 10 * round, first = rank.index();
    ASSERT_EQ(troika_all_reduce(session, &sum, 1, TROIKA_INT64, TROIKA_SUM, "sum"), TROIKA_OK)
        << troika_last_error();
    EXPECT_EQ(sum, 2 + 2 * color + 20 * round);  // 0 + 2, or 1 + 3
    ASSERT_EQ(troika_broadcast(session, &first, 1, TROIKA_INT64, 0, "first"), TROIKA_OK)
        << troika_last_error();
    EXPECT_EQ(first, 2 + color);
  }
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

// Before MPI_Init, and on what is no communicator; neither keeps the program from a session later.
RANK_FUNCTION(opens_sessions_out_of_order) {
  troika_session* session = nullptr;
  EXPECT_EQ(troika_open_mpi(0, nullptr, &session), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("MPI to be initialised"));
  EXPECT_THAT(std::string(troika_last_hint()), testing::HasSubstr("call MPI_Init"));
  const OwnMpi mpi;
  EXPECT_EQ(troika_open_mpi(-77, nullptr, &session), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()),
              testing::AllOf(testing::HasSubstr("the communicator cannot be used"),
                             testing::Not(testing::HasSubstr("\n"))));
  EXPECT_THAT(std::string(troika_last_hint()), testing::HasSubstr("MPI_Comm_c2f"));
  EXPECT_EQ(session, nullptr);
  ASSERT_EQ(troika_open_mpi(mpi.world(), nullptr, &session), TROIKA_OK) << troika_last_error();
  double sum = 1;
  EXPECT_EQ(troika_all_reduce(session, &sum, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum"), TROIKA_OK);
  EXPECT_EQ(sum, rank.size());
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

// The program ends its MPI before its session, which the engine mpi carries.
RANK_FUNCTION(ends_mpi_before_its_session) {
  OwnMpi mpi(OwnMpi::Threads::kAll);
  troika_options options = {};
  options.engine = "mpi";
  options.timeout_seconds = 30;
  troika_session *session = nullptr, *later = nullptr, *forgotten = nullptr;
  ASSERT_EQ(troika_open_mpi(mpi.world(), &options, &session), TROIKA_OK) << troika_last_error();
  ASSERT_EQ(troika_open_mpi(mpi.world(), &options, &forgotten), TROIKA_OK) << troika_last_error();
  double sum = 1;
  for (troika_session* each : {session, forgotten}) {
    EXPECT_EQ(troika_all_reduce(each, &sum, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum"), TROIKA_OK)
        << troika_last_error();
  }
  EXPECT_EQ(sum, rank.size() * rank.size());
  mpi.finalize();
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(troika_all_reduce(session, &sum, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum"),
              TROIKA_RENDEZVOUS);
    EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("MPI_Finalize"));
  }
  EXPECT_EQ(troika_open_mpi(mpi.world(), &options, &later), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("MPI_Finalize"));
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

// Every call leaves the program and what it does about MPI's errors as they were, and none of its
// handlers runs.
RANK_FUNCTION(leaves_the_caller_as_it_was) {
  OwnMpi mpi(OwnMpi::Threads::kAll);
  std::vector<double> usual;
  for (const bool own_handlers : {false, true}) {
    for (const char* engine : {"shm", "gloo", "mpi"}) {
      if (own_handlers) mpi.handle_errors();
      const auto open = [&](troika_session** session) {
        troika_options options = {};
        options.engine = engine;
        options.threads = 1;
        options.timeout_seconds = options.rendezvous_timeout_seconds = 30;
        return troika_open_mpi(mpi.world(), &options, session);
      };
      std::optional<CallerSettings> before;
      const auto begin = [&] { before.emplace(); };
      const OwnMpi::ErrorHandlers handlers = mpi.error_handlers();
      const auto check = [&](const std::string& call) {
        EXPECT_EQ(CallerSettings().changed_from(*before), "") << engine << ", after " << call;
        EXPECT_EQ(mpi.error_handlers(), handlers) << engine << ", after " << call;
      };
      troika_session* none = nullptr;
      EXPECT_EQ(troika_open_mpi(-77, nullptr, &none), TROIKA_USAGE);
      EXPECT_EQ(mpi.error_handlers(), handlers);
      const std::vector<double> losses = call_everything(open, rank.folder(), begin, check);
      if (usual.empty()) usual = losses;
      EXPECT_EQ(losses, usual) << engine;
    }
  }
  EXPECT_EQ(OwnMpi::handled_errors(), 0);
}

class CApiMpi : public testing::TestWithParam<TestedEngine> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CApiMpi);

TEST_P(CApiMpi, SessionsOnTwoHalvesOfAJob) {
  expect_ranks("opens_sessions_on_halves", 4, GetParam().options);
}

TEST_P(CApiMpi, OpensAfterMpiInitAndOnACommunicator) {
  expect_ranks("opens_sessions_out_of_order", 2, GetParam().options);
}

TEST_P(CApiMpi, LeavesTheCallerAsItWas) {
  expect_ranks("leaves_the_caller_as_it_was", 2, GetParam().options);
}

TEST_P(CApiMpi, EndsWithAnErrorOnceTheProgramHasEndedMpi) {
  expect_ranks("ends_mpi_before_its_session", 2, GetParam().options);
}

INSTANTIATE_TEST_SUITE_P(Flavours, CApiMpi, testing::ValuesIn(tested_mpi_engines()),
                         [](const auto& info) { return info.param.name; });

// Rank 1 comes to no collective before rank 0 has closed: neither waits for the other to leave.
RANK_TEST(CApiRanks, ClosingAfterAMissingRankWaitsForNobody, 2) {
  troika_session* session = open_session(rank, rank.index() == 0 ? 0.5 : 30);
  double value = 1;
  const auto add_up = [&] {
    return troika_all_reduce(session, &value, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum");
  };
  if (rank.index() == 1) rank.wait_for_all("rank 0 has closed");
  EXPECT_EQ(add_up(), TROIKA_RENDEZVOUS);
  EXPECT_THAT(std::string(troika_last_hint()),
              testing::Not(testing::HasSubstr("SessionOptions")));  // C has other names
  EXPECT_EQ(add_up(), TROIKA_RENDEZVOUS);
  EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("sum"));
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
  if (rank.index() == 0) rank.wait_for_all("rank 0 has closed");
}

}  // namespace
}  // namespace troika::test
