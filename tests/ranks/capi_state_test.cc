// The state of a model inside a program: it goes on with the same bits, on any number of ranks, and
// a file that is none is refused in words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "capi_helper.h"
#include "own_mpi.h"
#include "rank_helper.h"

namespace troika::test {
namespace {

std::string state_recipe(const std::string& optimizer, const std::string& more = "") {
  return "seed = 3\n[model]\nkind = \"mlp\"\ninput_dim = 2\nhidden_dims = [16]\noutput_dim = 1\n"
         "activation = \"tanh\"\nloss = \"mean_square\"\n" +
         more + "[train]\nsteps = 12\nprecision = \"fp64\"\n[optimizer]\nkind = \"" + optimizer +
         "\"\nlr = 0.01\nwarmup_steps = 4\n";
}

troika_model* create(troika_session* session, const std::string& recipe) {
  troika_model* model = nullptr;
  EXPECT_EQ(troika_model_create(session, recipe.c_str(), &model), TROIKA_OK) << troika_last_error();
  return model;
}

// The losses of some steps on 24 samples, of which each rank has its part.
std::vector<double> losses_of(troika_model* model, int steps, int first_step, int rank, int ranks) {
  std::vector<double> losses;
  for (int step = first_step; step < first_step + steps; ++step) {
    std::vector<double> x, y;
    for (int i = rank; i < 24; i += ranks) {
      x.push_back(std::sin(i + step));
      x.push_back(std::cos(3 * i));
      y.push_back(x[x.size() - 2] * x.back());
    }
    losses.push_back(-1);
    EXPECT_EQ(troika_model_step(model, x.data(), y.data(), static_cast<std::int64_t>(y.size()),
                                TROIKA_DOUBLE, &losses.back()),
              TROIKA_OK)
        << troika_last_error();
  }
  return losses;
}

double rate_of(troika_model* model) {
  double rate = -1;
  EXPECT_EQ(troika_model_learning_rate(model, &rate), TROIKA_OK);
  return rate;
}

void go_on_with_the_same_bits(Rank& rank, troika_session* session) {
  const std::string file = (rank.folder() / "state.safetensors").string();
  troika_session* alone = nullptr;
  ASSERT_EQ(troika_open_alone(nullptr, &alone), TROIKA_OK);
  const int own = rank.index(), ranks = rank.size();
  for (const char* optimizer : {"adamw", "sgd", "lamb"}) {
    const std::string recipe = state_recipe(optimizer);
    troika_model* through = create(session, recipe);
    const std::vector<double> first = losses_of(through, 5, 0, own, ranks);
    ASSERT_EQ(troika_model_save_state(through, file.c_str()), TROIKA_OK) << troika_last_error();
    const std::vector<double> expected = losses_of(through, 4, 5, own, ranks);
    rank.wait_for_all("saved with " + std::string(optimizer));

    troika_model* again = create(session, recipe);
    ASSERT_EQ(troika_model_load_state(again, file.c_str()), TROIKA_OK) << troika_last_error();
    std::vector<double> kept(TROIKA_LOSSES);
    std::int64_t count = 0, steps = 0;
    EXPECT_EQ(troika_model_losses(again, TROIKA_LOSSES, kept.data(), &count), TROIKA_OK);
    kept.resize(static_cast<std::size_t>(count));
    EXPECT_EQ(kept, first);
    EXPECT_EQ(troika_model_steps(again, &steps), TROIKA_OK);
    EXPECT_EQ(steps, 5);
    EXPECT_EQ(losses_of(again, 4, 5, own, ranks), expected);
    EXPECT_EQ(rate_of(again), rate_of(through));

    // On another number of ranks, up to rounding.
    troika_model* elsewhere = create(alone, recipe);
    ASSERT_EQ(troika_model_load_state(elsewhere, file.c_str()), TROIKA_OK) << troika_last_error();
    const std::vector<double> found = losses_of(elsewhere, 4, 5, 0, 1);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-14) << i;
    // Without the state of the optimiser the steps would be others.
    troika_model* values_alone = create(alone, recipe);
    EXPECT_EQ(troika_model_load(values_alone, file.c_str()), TROIKA_DATA);
    for (troika_model* each : {through, again, elsewhere, values_alone}) {
      EXPECT_EQ(troika_model_free(each), TROIKA_OK);
    }
    rank.wait_for_all("done with " + std::string(optimizer));
  }
  EXPECT_EQ(troika_close(alone), TROIKA_OK);
}

void refuse_the_state_of_another_model(Rank& rank, troika_session* session) {
  const std::string weights = (rank.folder() / "weights.safetensors").string();
  const std::string lion = (rank.folder() / "lion.safetensors").string();
  troika_model* model = create(session, state_recipe("adamw"));
  troika_model* other = create(session, state_recipe("lion"));
  ASSERT_EQ(troika_model_save(model, weights.c_str()), TROIKA_OK);
  ASSERT_EQ(troika_model_save_state(other, lion.c_str()), TROIKA_OK);
  const std::vector<double> before = losses_of(model, 1, 0, rank.index(), 2);
  const auto expect_refused = [&](const std::string& path, const std::string& words) {
    EXPECT_EQ(troika_model_load_state(model, path.c_str()), TROIKA_DATA);
    EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr(words));
  };
  expect_refused(weights, "holds no state of training: it has no number of steps");
  EXPECT_THAT(std::string(troika_last_hint()), testing::HasSubstr("troika_model_save_state()"));
  expect_refused(lion, "optimizer.exp_avg");
  expect_refused("never.safetensors", "never.safetensors");
  EXPECT_EQ(troika_model_load_state(model, rank.index() == 1 ? nullptr : lion.c_str()),
            TROIKA_USAGE);
  EXPECT_STREQ(troika_last_error(), "path is NULL, on rank 1");
  const std::string& other_path = rank.index() == 1 ? weights : lion;
  EXPECT_EQ(troika_model_load_state(model, other_path.c_str()), TROIKA_USAGE);
  EXPECT_THAT(
      std::string(troika_last_error()),
      testing::MatchesRegex("loading the state of model [0-9]+: path '.*lion.safetensors' on "
                            "rank 0.*path '.*weights.safetensors' on rank 1.*"));
  EXPECT_EQ(troika_model_load(model, lion.c_str()), TROIKA_DATA);
  EXPECT_THAT(std::string(troika_last_error()),
              testing::HasSubstr("lion.safetensors' holds the state of a training, and not"));
  EXPECT_THAT(std::string(troika_last_hint()), testing::HasSubstr("troika_model_load_state()"));
  std::int64_t steps = 0;
  EXPECT_EQ(troika_model_steps(model, &steps), TROIKA_OK);
  EXPECT_EQ(steps, 1);
  troika_model* same = create(session, state_recipe("adamw"));
  EXPECT_EQ(losses_of(same, 1, 0, rank.index(), 2), before);
  EXPECT_EQ(losses_of(same, 1, 1, rank.index(), 2), losses_of(model, 1, 1, rank.index(), 2));
  for (troika_model* each : {model, other, same}) EXPECT_EQ(troika_model_free(each), TROIKA_OK);
}

// [model] from, on every rank; a file of another model is refused on all.
void start_from_a_file(Rank& rank, troika_session* session) {
  const std::string trained = (rank.folder() / "trained.safetensors").string();
  const auto from = [](const std::string& file) { return "from = \"" + file + "\"\n"; };
  troika_model* first = create(session, state_recipe("sgd"));
  (void)losses_of(first, 3, 0, rank.index(), 2);
  ASSERT_EQ(troika_model_save(first, trained.c_str()), TROIKA_OK);
  rank.wait_for_all("saved");
  troika_model* second = create(session, state_recipe("adamw", from(trained)));
  const double x[] = {0.25, -0.5};
  double expected = 0, found = 1;
  EXPECT_EQ(troika_model_predict(first, x, 1, TROIKA_DOUBLE, &expected), TROIKA_OK);
  EXPECT_EQ(troika_model_predict(second, x, 1, TROIKA_DOUBLE, &found), TROIKA_OK);
  EXPECT_EQ(found, expected);
  troika_model* none = nullptr;
  for (const std::string& file : {std::string("never.safetensors"), trained}) {
    std::string recipe = state_recipe("sgd", from(file));
    recipe.replace(recipe.find("[16]"), 4, "[17]");
    EXPECT_EQ(troika_model_create(session, recipe.c_str(), &none), TROIKA_DATA);
    EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("[model] from"));
  }
  for (troika_model* each : {first, second}) EXPECT_EQ(troika_model_free(each), TROIKA_OK);
}

RANK_TEST(CApiState, GoesOnWithTheSameBits, 1, 2) {
  troika_session* session = open_session(rank, 30);
  go_on_with_the_same_bits(rank, session);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

RANK_TEST(CApiState, OfAnotherModelIsRefusedAndChangesNothing, 2) {
  troika_session* session = open_session(rank, 30);
  refuse_the_state_of_another_model(rank, session);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

RANK_TEST(CApiState, InitialValuesAreThoseOfAFile, 2) {
  troika_session* session = open_session(rank, 30);
  start_from_a_file(rank, session);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

RANK_FUNCTION(keeps_its_state_over_mpi) {
  const OwnMpi mpi(OwnMpi::Threads::kAll);
  troika_session* session = open_session_over(mpi, "mpi");
  go_on_with_the_same_bits(rank, session);
  refuse_the_state_of_another_model(rank, session);
  start_from_a_file(rank, session);
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
}

class CApiStateOverMpi : public testing::TestWithParam<TestedEngine> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CApiStateOverMpi);

TEST_P(CApiStateOverMpi, IsTheSame) {
  expect_ranks("keeps_its_state_over_mpi", 2, GetParam().options);
}

INSTANTIATE_TEST_SUITE_P(Flavours, CApiStateOverMpi, testing::ValuesIn(tested_mpi_engines()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troika::test
