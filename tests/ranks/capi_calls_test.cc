// Ranks that do not make the same calls, or not with the same arguments: all are told the same, at
// once and before anything is computed, whatever engine carries it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "capi_helper.h"
#include "own_mpi.h"
#include "rank_helper.h"

namespace troika::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kPointRecipe =
    "[model]\nkind = \"mlp\"\ninput_dim = 1\nhidden_dims = [4]\noutput_dim = 1\n"
    "activation = \"tanh\"\nloss = \"mean_square\"\n[train]\nsteps = 50\nprecision = \"fp64\"\n"
    "[optimizer]\nkind = \"sgd\"\nlr = 0.1\nwarmup_steps = 0\n";

// Opens a session of all ranks.
using Open = std::function<troika_session*()>;

// Runs `work` with sessions over each engine.
void with_each_engine(Rank& rank, const std::function<void(Rank& rank, const Open& open)>& work) {
  for (const char* engine : {"shm", "gloo"}) {
    work(rank, [&] { return open_session(rank, 30, engine); });
  }
}

// A session with two models of one shape.
struct TwoModels {
  explicit TwoModels(const Open& open) : session(open()) {
    for (troika_model** each : {&first, &second}) {
      EXPECT_EQ(troika_model_create(session, kPointRecipe, each), TROIKA_OK) << troika_last_error();
    }
  }
  void close() {
    EXPECT_EQ(troika_model_free(first), TROIKA_OK);
    EXPECT_EQ(troika_model_free(second), TROIKA_OK);
    EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
  }
  troika_session* session;
  troika_model *first = nullptr, *second = nullptr;
};

int step(troika_model* model, double* loss = nullptr) {
  const double x[] = {0.25, -0.5}, y[] = {1, 2};
  return troika_model_step(model, x, y, 2, TROIKA_DOUBLE, loss);
}

double predicted(troika_model* model) {
  const double x[] = {0.75};
  double y = 0;
  EXPECT_EQ(troika_model_predict(model, x, 1, TROIKA_DOUBLE, &y), TROIKA_OK);
  return y;
}

void step_models_in_another_order(Rank& rank, const Open& open) {
  const std::string line =
      std::string("the ranks have made different calls: a step of model 1 on ") +
      (rank.size() == 2 ? "rank 0" : "ranks 0 and 2") + ", a step of model 2 on rank 1";
  TwoModels models(open);
  ASSERT_EQ(step(models.first), TROIKA_OK) << troika_last_error();
  const double before = predicted(models.first), other = predicted(models.second);
  expect_told(step(rank.index() == 1 ? models.second : models.first), TROIKA_RENDEZVOUS, line);
  EXPECT_EQ(predicted(models.first), before);
  EXPECT_EQ(predicted(models.second), other);
  expect_told(step(models.first), TROIKA_RENDEZVOUS, "the session has ended before: " + line);
  models.close();
}

RANK_TEST(CApiCalls, OfModelsInAnotherOrderAreRefused, 3) {
  with_each_engine(rank, step_models_in_another_order);
}

// Names that the program gives stand beside the numbers, on each rank its own.
void step_named_models_in_another_order(Rank& rank, const Open& open) {
  TwoModels models(open);
  EXPECT_EQ(troika_model_set_name(models.first, "bulk"), TROIKA_OK);
  EXPECT_EQ(troika_model_set_name(models.second, "closure"), TROIKA_OK);
  const double before = predicted(models.first);
  expect_told(step(rank.index() == 1 ? models.second : models.first), TROIKA_RENDEZVOUS,
              "the ranks have made different calls: a step of model 1 'bulk' on rank 0, a step of "
              "model 2 'closure' on rank 1");
  EXPECT_EQ(predicted(models.first), before);
  models.close();
}

RANK_TEST(CApiCalls, NameTheModels, 2) {
  with_each_engine(rank, step_named_models_in_another_order);
}

// Also where a rank does not come, in its error as in flight recorders.
RANK_TEST(CApiCalls, NameTheModelThatWaits, 2) {
  const bool late = rank.index() == 1;
  TwoModels models([&] { return open_session(rank, late ? 30 : 0.5); });
  EXPECT_EQ(troika_model_set_name(models.first, "bulk"), TROIKA_OK);
  EXPECT_EQ(troika_model_set_name(models.second, "closure"), TROIKA_OK);
  EXPECT_EQ(troika_model_set_name(models.second, nullptr), TROIKA_OK);  // it has none any more
  if (late) {
    rank.wait_for_all("rank 0 has waited");
  } else {
    EXPECT_EQ(step(models.first), TROIKA_RENDEZVOUS);
    EXPECT_THAT(std::string(troika_last_error()),
                testing::HasSubstr("all_reduce 'a step of model 1 (bulk)'"));
    EXPECT_EQ(step(models.second), TROIKA_RENDEZVOUS);
    rank.wait_for_all("rank 0 has waited");
  }
  EXPECT_EQ(troika_model_free(models.first), TROIKA_OK);
  EXPECT_EQ(troika_model_free(models.second), TROIKA_OK);
  EXPECT_EQ(troika_model_set_name(models.first, "bulk"), TROIKA_USAGE);
  EXPECT_STREQ(troika_last_error(), "model is freed already");
  if (late) {
    double value = 0;
    EXPECT_EQ(troika_all_reduce(models.session, &value, 1, TROIKA_DOUBLE, TROIKA_SUM, nullptr),
              TROIKA_RENDEZVOUS);
  }
  EXPECT_EQ(troika_close(models.session), TROIKA_OK) << troika_last_error();
}

// The first key in which they differ, with both values.
RANK_TEST(CApiCalls, NameTheKeyInWhichRecipesDiffer, 3) {
  troika_session* session = open_session(rank, 30);
  const std::string rate = rank.index() == 1 ? "0.5" : "0.25";
  const std::string recipe =
      "[model]\nkind = \"mlp\"\ninput_dim = 1\nhidden_dims = [4]\noutput_dim = 1\n"
      "[optimizer]\nlr = " +
      rate + "\n";
  troika_model* model = nullptr;
  expect_told(troika_model_create(session, recipe.c_str(), &model), TROIKA_USAGE,
              "the recipe of the model differs: optimizer.lr is 0.25 on rank 0 and 0.5 on rank 1");
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(troika_barrier(session, nullptr), TROIKA_OK) << troika_last_error();
  EXPECT_EQ(troika_close(session), TROIKA_OK);
}

void make_other_calls(Rank& rank, const Open& open) {
  TwoModels models(open);
  double value = 1;
  const int status = rank.index() == 0 ? troika_model_save(models.second, "never.safetensors")
                                       : troika_all_reduce(models.session, &value, 1, TROIKA_DOUBLE,
                                                           TROIKA_SUM, "heat");
  expect_told(status, TROIKA_RENDEZVOUS,
              "the ranks have made different calls: saving of model 2 on rank 0, "
              "troika_all_reduce 'heat' on rank 1");
  EXPECT_EQ(value, 1);
  models.close();
}

RANK_TEST(CApiCalls, OfOtherKindsAreRefused, 2) {
  with_each_engine(rank, make_other_calls);
}

void give_other_arguments(Rank& rank, const Open& open) {
  const bool odd = rank.index() == 1;
  TwoModels models(open);
  double values[] = {1, 2, 3, 4};
  expect_told(troika_broadcast(models.session, values, 4, TROIKA_DOUBLE, odd ? 1 : 0, nullptr),
              TROIKA_USAGE,
              "troika_broadcast: 4 values of TROIKA_DOUBLE from rank 0 on rank 0, 4 values of "
              "TROIKA_DOUBLE from rank 1 on rank 1");
  expect_told(troika_all_reduce(models.session, values, odd ? 2 : 4, TROIKA_DOUBLE, TROIKA_AVERAGE,
                                nullptr),
              TROIKA_USAGE,
              "troika_all_reduce: 4 values of TROIKA_DOUBLE, TROIKA_AVERAGE on rank 0, 2 values "
              "of TROIKA_DOUBLE, TROIKA_AVERAGE on rank 1");
  expect_told(troika_all_reduce(models.session, values, odd ? 8 : 4,
                                odd ? TROIKA_FLOAT : TROIKA_DOUBLE, TROIKA_AVERAGE, nullptr),
              TROIKA_USAGE,
              "troika_all_reduce: 4 values of TROIKA_DOUBLE, TROIKA_AVERAGE on rank 0, 8 values "
              "of TROIKA_FLOAT, TROIKA_AVERAGE on rank 1");
  expect_told(troika_broadcast(models.session, values, 4, TROIKA_DOUBLE, odd ? 2 : 0, nullptr),
              TROIKA_USAGE, "root 2 is none of 2 ranks, on rank 1");
  expect_told(troika_model_save(models.first, odd ? nullptr : "never.safetensors"), TROIKA_USAGE,
              "path is NULL, on rank 1");
  EXPECT_THAT(values, testing::ElementsAre(1, 2, 3, 4));
  ASSERT_EQ(troika_broadcast(models.session, values, 4, TROIKA_DOUBLE, 1, nullptr), TROIKA_OK);
  EXPECT_EQ(step(models.first), TROIKA_OK) << troika_last_error();
  models.close();
}

RANK_TEST(CApiCalls, WithOtherArgumentsAreRefusedAndTheSessionGoesOn, 2) {
  with_each_engine(rank, give_other_arguments);
}

// A sample that weighs less than nothing, and weights that one rank alone gives.
void give_wrong_weights(Rank& rank, const Open& open) {
  TwoModels models(open);
  std::array<double, 4> x = {0.1, 0.2, 0.3, 0.4}, y = {1, 2, 3, 4}, weights = {1, 2, 1, 2};
  troika_array inputs[] = {{"inputs", x.data(), 4, TROIKA_DOUBLE}};
  troika_array targets[] = {{"targets", y.data(), 4, TROIKA_DOUBLE},
                            {"sample_weights", weights.data(), 4, TROIKA_DOUBLE}};
  troika_tensor described = {};
  ASSERT_EQ(troika_model_tensor(models.first, TROIKA_INPUT, 0, &described), TROIKA_OK);
  inputs[0].name = described.name;
  ASSERT_EQ(troika_model_tensor(models.first, TROIKA_TARGET, 0, &described), TROIKA_OK);
  targets[0].name = described.name;
  double loss = 0, same = 0;
  const auto weighed = [&](int count) {
    return troika_model_step_arrays(models.first, inputs, 1, targets, count, 4, &loss);
  };
  const double before = predicted(models.first);
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    weights[3] = rank.index() == 1 ? wrong : 2;
    const std::string words = std::isnan(wrong) ? "nan" : wrong < 0 ? "-1" : "inf";
    expect_told(weighed(2), TROIKA_USAGE,
                "target 'sample_weights': sample 3 has " + words + ", on rank 1");
  }
  weights[3] = 2;
  expect_told(weighed(rank.index() == 1 ? 1 : 2), TROIKA_USAGE,
              "a step of model 1: with 'sample_weights' on rank 0, no optional array on rank 1");
  weights = {};
  expect_told(weighed(2), TROIKA_USAGE,
              "a step of samples whose targets are all missing, or weigh nothing");
  EXPECT_EQ(predicted(models.first), before);
  weights = {1, 2, 1, 2};
  ASSERT_EQ(weighed(2), TROIKA_OK) << troika_last_error();
  ASSERT_EQ(troika_model_step_arrays(models.second, inputs, 1, targets, 2, 4, &same), TROIKA_OK);
  EXPECT_EQ(loss, same);
  EXPECT_EQ(predicted(models.first), predicted(models.second));
  models.close();
}

RANK_TEST(CApiCalls, WithWeightsThatOneRankHasWrongLeaveTheModelAsItWas, 2) {
  with_each_engine(rank, give_wrong_weights);
}

// The loss of a rank, or of all, is no number: the step is not applied, and the next one is.
void give_no_numbers(Rank& rank, const Open& open) {
  TwoModels models(open);
  const double before = predicted(models.first), y[] = {1, 2};
  double x[] = {0.25, -0.5};
  for (const int first : {1, 0}) {  // rank 1, then both
    x[1] = rank.index() >= first ? std::numeric_limits<double>::quiet_NaN() : -0.5;
    expect_told(troika_model_step(models.first, x, y, 2, TROIKA_DOUBLE, nullptr), TROIKA_NONFINITE,
                first == 1 ? "the loss is not finite on rank 1 at step 1"
                           : "the loss is not finite on ranks 0 and 1 at step 2");
  }
  EXPECT_EQ(predicted(models.first), before);
  double loss = 0, same = 0;
  ASSERT_EQ(step(models.first, &loss), TROIKA_OK) << troika_last_error();
  ASSERT_EQ(step(models.second, &same), TROIKA_OK) << troika_last_error();
  EXPECT_EQ(loss, same);
  models.close();
}

RANK_TEST(CApiCalls, WithNumbersThatAreNoneLeaveTheModelAsItWas, 2) {
  with_each_engine(rank, give_no_numbers);
}

// At once, rather than after the time-out.
void step_behind_a_rank_that_closes(Rank& rank, const Open& open) {
  TwoModels models(open);
  const std::string line = "rank 1 has closed the session before a step of model 1 on rank 0";
  const auto start = Clock::now();
  if (rank.index() == 0) {
    expect_told(step(models.first), TROIKA_RENDEZVOUS, line);
    models.close();
  } else {
    EXPECT_EQ(troika_model_free(models.first), TROIKA_OK);
    EXPECT_EQ(troika_model_free(models.second), TROIKA_OK);
    expect_told(troika_close(models.session), TROIKA_RENDEZVOUS, line);
    EXPECT_EQ(troika_close(models.session), TROIKA_USAGE);  // it is closed
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  rank.wait_for_all("both have closed");
}

RANK_TEST(CApiCalls, OfARankThatHasClosedAreRefusedAtOnce, 2) {
  with_each_engine(rank, step_behind_a_rank_that_closes);
}

// The same over MPI.
RANK_FUNCTION(compares_calls_over_mpi) {
  const OwnMpi mpi(OwnMpi::Threads::kAll);
  const Open open = [&] { return open_session_over(mpi, "mpi"); };
  step_models_in_another_order(rank, open);
  step_named_models_in_another_order(rank, open);
  make_other_calls(rank, open);
  give_other_arguments(rank, open);
  give_wrong_weights(rank, open);
  give_no_numbers(rank, open);
  step_behind_a_rank_that_closes(rank, open);
}

class CApiCallsOverMpi : public testing::TestWithParam<TestedEngine> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CApiCallsOverMpi);

TEST_P(CApiCallsOverMpi, AreCompared) {
  expect_ranks("compares_calls_over_mpi", 2, GetParam().options);
}

INSTANTIATE_TEST_SUITE_P(Flavours, CApiCallsOverMpi, testing::ValuesIn(tested_mpi_engines()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
