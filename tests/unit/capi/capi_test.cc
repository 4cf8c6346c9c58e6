// The C functions on one rank: what they give back, and what they refuse in words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <support/temporary_folder.h>

namespace troika {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRecipe = R"(
[model]
kind = "mlp"
input_dim = 2
hidden_dims = [8]
output_dim = 1
activation = "tanh"
loss = "mean_square"
[train]
steps = 200
precision = "fp64"
[optimizer]
kind = "sgd"
lr = 0.2
weight_decay = 0.0
warmup_steps = 0
schedule = "constant"
)";

constexpr std::int64_t kSamples = 32;

class CApi : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(troika_open_alone(nullptr, &session_), TROIKA_OK); }
  void TearDown() override { EXPECT_EQ(troika_close(session_), TROIKA_OK); }

  troika_model* create(const std::string& recipe = kRecipe) {
    troika_model* model = nullptr;
    EXPECT_EQ(troika_model_create(session_, recipe.c_str(), &model), TROIKA_OK)
        << troika_last_error();
    return model;
  }
  static void refuses(int status, int expected, const char* words) {
    EXPECT_EQ(status, expected);
    EXPECT_THAT(std::string(troika_last_error()), HasSubstr(words));
  }

  troika_session* session_ = nullptr;
};

// x y / 2 on a square.
template <class Number>
struct Arrays {
  std::vector<Number> inputs, targets;
  Arrays() {
    for (int i = 0; i < kSamples; ++i) {
      const double x = std::sin(i), y = std::cos(3 * i);
      inputs.push_back(static_cast<Number>(x));
      inputs.push_back(static_cast<Number>(y));
      targets.push_back(static_cast<Number>(x * y / 2));
    }
  }
};

TEST_F(CApi, LearnsFromTheCallersArrays) {
  troika_model* model = create();
  const Arrays<double> arrays;
  const std::vector<double> before = arrays.inputs;
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    ASSERT_EQ(troika_model_step(model, arrays.inputs.data(), arrays.targets.data(), kSamples,
                                TROIKA_DOUBLE, step == 0 ? &first : &last),
              TROIKA_OK)
        << troika_last_error();
  }
  EXPECT_LT(last, first / 4);
  EXPECT_EQ(arrays.inputs, before);
  std::int64_t steps = 0;
  EXPECT_EQ(troika_model_steps(model, &steps), TROIKA_OK);
  EXPECT_EQ(steps, 200);

  // Its predictions have the loss that it says.
  std::vector<double> outputs(kSamples);
  ASSERT_EQ(
      troika_model_predict(model, arrays.inputs.data(), kSamples, TROIKA_DOUBLE, outputs.data()),
      TROIKA_OK);
  double squares = 0, loss = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    squares += (outputs[i] - arrays.targets[i]) * (outputs[i] - arrays.targets[i]);
  }
  ASSERT_EQ(troika_model_loss(model, arrays.inputs.data(), arrays.targets.data(), kSamples,
                              TROIKA_DOUBLE, &loss),
            TROIKA_OK);
  EXPECT_NEAR(loss, squares / kSamples, 1e-14);
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
}

TEST_F(CApi, FloatsAreAsGoodAsDoubles) {
  troika_model* model = create();
  const Arrays<double> doubles;
  const Arrays<float> floats;
  double exact = 0, rounded = 0;
  ASSERT_EQ(troika_model_loss(model, doubles.inputs.data(), doubles.targets.data(), kSamples,
                              TROIKA_DOUBLE, &exact),
            TROIKA_OK);
  ASSERT_EQ(troika_model_loss(model, floats.inputs.data(), floats.targets.data(), kSamples,
                              TROIKA_FLOAT, &rounded),
            TROIKA_OK);
  EXPECT_NEAR(rounded, exact, 1e-6);
  EXPECT_NE(rounded, exact);
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
}

TEST_F(CApi, ClassesAreNumbers) {
  std::string recipe = kRecipe;
  recipe.replace(recipe.find("output_dim = 1"), 14, "output_dim = 3");
  recipe.replace(recipe.find("mean_square"), 11, "cross_entropy");
  troika_model* model = create(recipe);
  const double inputs[] = {0, 0, 1, 1};
  const double classes[] = {0, 2}, halves[] = {0, 0.5}, beyond[] = {0, 3};
  double loss = 0;
  EXPECT_EQ(troika_model_step(model, inputs, classes, 2, TROIKA_DOUBLE, &loss), TROIKA_OK);
  EXPECT_GT(loss, 0);
  refuses(troika_model_step(model, inputs, halves, 2, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "target 'targets': sample 1 has 0.5, not a whole number from 0 to 2");
  refuses(troika_model_step(model, inputs, beyond, 2, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "target 'targets': sample 1 has 3, not a whole number from 0 to 2");
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
}

TEST_F(CApi, WhatIsSavedIsLoaded) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "model.safetensors").string();
  troika_model *model = create(), *other = create("seed = 3\n" + std::string(kRecipe));
  const double input[] = {0.3, -0.4};
  double output = 0, before = 0, after = 0;
  ASSERT_EQ(troika_model_predict(model, input, 1, TROIKA_DOUBLE, &output), TROIKA_OK);
  ASSERT_EQ(troika_model_predict(other, input, 1, TROIKA_DOUBLE, &before), TROIKA_OK);
  EXPECT_NE(before, output);
  ASSERT_EQ(troika_model_save(model, path.c_str()), TROIKA_OK) << troika_last_error();
  ASSERT_EQ(troika_model_load(other, path.c_str()), TROIKA_OK) << troika_last_error();
  ASSERT_EQ(troika_model_predict(other, input, 1, TROIKA_DOUBLE, &after), TROIKA_OK);
  EXPECT_EQ(after, output);
  refuses(troika_model_load(other, (folder.path() / "none").string().c_str()), TROIKA_DATA, "none");
  refuses(troika_model_save(other, (folder.path() / "no" / "folder").string().c_str()),
          TROIKA_STORAGE, "folder");
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
  EXPECT_EQ(troika_model_free(other), TROIKA_OK);
}

TEST_F(CApi, ReductionsAreInPlace) {
  std::int64_t values[] = {3, 4};
  EXPECT_EQ(troika_all_reduce(session_, values, 2, TROIKA_INT64, TROIKA_SUM, nullptr), TROIKA_OK);
  EXPECT_EQ(values[1], 4);
  EXPECT_EQ(troika_broadcast(session_, values, 2, TROIKA_INT64, 0, "values"), TROIKA_OK);
  EXPECT_EQ(troika_barrier(session_, nullptr), TROIKA_OK);
  int rank = -1, size = -1;
  EXPECT_EQ(troika_rank(session_, &rank), TROIKA_OK);
  EXPECT_EQ(troika_size(session_, &size), TROIKA_OK);
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(size, 1);
}

TEST_F(CApi, ReadsARecipeFromAFile) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "recipe.toml").string();
  std::ofstream(path) << kRecipe;
  troika_model *model = nullptr, *same = create();
  ASSERT_EQ(troika_model_create_from_file(session_, path.c_str(), &model), TROIKA_OK)
      << troika_last_error();
  const double input[] = {0.3, -0.4};
  double output = 0, wanted = 1;
  ASSERT_EQ(troika_model_predict(model, input, 1, TROIKA_DOUBLE, &output), TROIKA_OK);
  ASSERT_EQ(troika_model_predict(same, input, 1, TROIKA_DOUBLE, &wanted), TROIKA_OK);
  EXPECT_EQ(output, wanted);
  std::ofstream(path) << "[model]\nkind = \"mlq\"\n";
  troika_model* none = nullptr;
  refuses(troika_model_create_from_file(session_, path.c_str(), &none), TROIKA_USAGE,
          "recipe.toml:2");
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
  EXPECT_EQ(troika_model_free(same), TROIKA_OK);
}

TEST_F(CApi, RefusesEnginesThatCarryNoArrays) {
  const auto refuse = [](const char* engine, const char* words) {
    troika_options options = {};
    options.engine = engine;
    troika_session* none = nullptr;
    refuses(troika_open_alone(&options, &none), TROIKA_USAGE, words);
    EXPECT_STREQ(troika_last_hint(), "engines: auto, shm, gloo, mpi");
    refuses(troika_open(&options, &none), TROIKA_USAGE, words);
    EXPECT_EQ(none, nullptr);
  };
  refuse("gluu", "no engine is called 'gluu'");
  refuse("fake", "engine 'fake' exchanges nothing");
  refuse("nccl", "engine 'nccl' takes no arrays in host memory");
}

TEST_F(CApi, LeavesFrozenParametersAsTheyAre) {
  const Arrays<double> arrays;
  const auto loss_after_a_step = [&](const std::string& more) {
    troika_model* model = create(kRecipe + more);
    double before = 0, after = 0;
    const double *x = arrays.inputs.data(), *y = arrays.targets.data();
    EXPECT_EQ(troika_model_step(model, x, y, kSamples, TROIKA_DOUBLE, &before), TROIKA_OK);
    EXPECT_EQ(troika_model_loss(model, x, y, kSamples, TROIKA_DOUBLE, &after), TROIKA_OK);
    EXPECT_EQ(troika_model_free(model), TROIKA_OK);
    return after - before;
  };
  EXPECT_NE(loss_after_a_step(""), 0);
  EXPECT_EQ(loss_after_a_step("groups = [{match = \"*bias\", lr_factor = 0, weight_decay = 0},"
                              "{match = \"*\", frozen = true}]\n"),
            0);
  troika_model* none = nullptr;
  refuses(
      troika_model_create(
          session_, (kRecipe + std::string("groups = [{match = \"*\", frozen = true}]\n")).c_str(),
          &none),
      TROIKA_USAGE, "all parameters of the model are frozen");
}

TEST_F(CApi, RefusesInWords) {
  troika_model* model = nullptr;
  double loss = 0;
  refuses(troika_model_create(session_, "[model]\nkind = \"mlq\"", &model), TROIKA_USAGE, "mlq");
  refuses(troika_model_create(session_, "[model]\nkind = \"mlp\"\nhidden_dims = [8]", &model),
          TROIKA_USAGE, "missing required key 'input_dim'");
  refuses(troika_model_create(session_, (std::string(kRecipe) + "[train]\n").c_str(), &model),
          TROIKA_USAGE, "recipe:");
  refuses(troika_model_create(session_, nullptr, &model), TROIKA_USAGE, "recipe is NULL");
  refuses(troika_model_create(session_, "heat.toml", &model), TROIKA_USAGE,
          "recipe is 'heat.toml', not the text of a recipe");
  EXPECT_THAT(std::string(troika_last_hint()), HasSubstr("troika_model_create_from_file()"));
  refuses(troika_model_create(nullptr, kRecipe, &model), TROIKA_USAGE, "session is NULL");
  refuses(troika_model_create_from_file(session_, "/no/such/file", &model), TROIKA_USAGE,
          "cannot read '/no/such/file': No such file or directory");
  EXPECT_THAT(std::string(troika_last_hint()), HasSubstr("check the path"));
  refuses(troika_model_create_from_file(session_, nullptr, &model), TROIKA_USAGE, "path is NULL");
  EXPECT_EQ(model, nullptr);
  refuses(troika_broadcast(session_, &loss, 1, TROIKA_DOUBLE, 1, ""), TROIKA_USAGE,
          "root 1 is none of 1 rank");
  refuses(troika_all_reduce(session_, &loss, 1, 9, TROIKA_SUM, ""), TROIKA_USAGE, "type 9");
  refuses(troika_all_reduce(session_, &loss, 1, TROIKA_DOUBLE, 9, ""), TROIKA_USAGE, "reduction 9");
  refuses(troika_all_reduce(session_, &loss, -1, TROIKA_DOUBLE, TROIKA_SUM, ""), TROIKA_USAGE,
          "negative");

  model = create();
  const double input[] = {0, NAN}, target[] = {0};
  refuses(troika_model_step(model, input, nullptr, 1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "targets is NULL");
  refuses(troika_model_step(model, input, target, 1, TROIKA_INT32, &loss), TROIKA_USAGE,
          "TROIKA_FLOAT or TROIKA_DOUBLE");
  refuses(troika_model_step(model, input, target, -1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "a negative number of samples: -1");
  refuses(troika_model_step(model, input, target, 0, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "no samples at all");
  const double finite[] = {0, 1}, missing[] = {NAN};
  refuses(troika_model_step(model, finite, missing, 1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "targets are all missing");
  refuses(troika_model_step(model, input, target, 1, TROIKA_DOUBLE, &loss), TROIKA_NONFINITE,
          "not finite on rank 0 at step 1");
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
  EXPECT_EQ(troika_model_free(nullptr), TROIKA_OK);
}

// The time-outs, and a communicator where there is no MPI.
TEST_F(CApi, RefusesToOpenWhatCannotBe) {
  troika_session* none = nullptr;
  refuses(troika_open(nullptr, nullptr), TROIKA_USAGE, "session is NULL");
  refuses(troika_open_alone(nullptr, nullptr), TROIKA_USAGE, "session is NULL");
  refuses(troika_open_mpi(0, nullptr, nullptr), TROIKA_USAGE, "session is NULL");
  for (const double seconds : {-1.0, static_cast<double>(NAN)}) {
    troika_options collective = {}, rendezvous = {};
    collective.timeout_seconds = rendezvous.rendezvous_timeout_seconds = seconds;
    for (const troika_options* options : {&collective, &rendezvous}) {
      refuses(troika_open(options, &none), TROIKA_USAGE, "a time-out is negative, or no number");
      refuses(troika_open_alone(options, &none), TROIKA_USAGE, "a time-out is negative");
      refuses(troika_open_mpi(0, options, &none), TROIKA_USAGE, "a time-out is negative");
    }
  }
  troika_options long_one = {};
  long_one.timeout_seconds = 1e300;
  refuses(troika_open_alone(&long_one, &none), TROIKA_USAGE,
          "a time-out of 1e+300 s is longer than 1e+07 s");
  refuses(troika_open_mpi(0, nullptr, &none), TROIKA_USAGE, "MPI cannot be used: ");
  EXPECT_STRNE(troika_last_hint(), "");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(troika_close(nullptr), TROIKA_OK);
}

TEST_F(CApi, DoesNotCloseASessionWithAModel) {
  troika_model* model = create();
  refuses(troika_close(session_), TROIKA_USAGE, "1 model of the session is not freed");
  int ranks = 0;
  EXPECT_EQ(troika_size(session_, &ranks), TROIKA_OK);
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
}

TEST_F(CApi, NamesTheArgumentOfASessionThatIsNull) {
  int number = 0;
  double value = 1;
  refuses(troika_rank(nullptr, &number), TROIKA_USAGE, "session is NULL");
  refuses(troika_rank(session_, nullptr), TROIKA_USAGE, "rank is NULL");
  refuses(troika_size(nullptr, &number), TROIKA_USAGE, "session is NULL");
  refuses(troika_size(session_, nullptr), TROIKA_USAGE, "size is NULL");
  refuses(troika_all_reduce(nullptr, &value, 1, TROIKA_DOUBLE, TROIKA_SUM, ""), TROIKA_USAGE,
          "session is NULL");
  refuses(troika_all_reduce(session_, nullptr, 1, TROIKA_DOUBLE, TROIKA_SUM, ""), TROIKA_USAGE,
          "values is NULL");
  EXPECT_EQ(troika_all_reduce(session_, nullptr, 0, TROIKA_DOUBLE, TROIKA_SUM, ""), TROIKA_OK);
  refuses(troika_broadcast(nullptr, &value, 1, TROIKA_DOUBLE, 0, ""), TROIKA_USAGE,
          "session is NULL");
  refuses(troika_broadcast(session_, nullptr, 1, TROIKA_DOUBLE, 0, ""), TROIKA_USAGE,
          "values is NULL");
  refuses(troika_broadcast(session_, &value, 1, TROIKA_DOUBLE, 1, ""), TROIKA_USAGE, "root");
  refuses(troika_broadcast(session_, &value, -1, TROIKA_DOUBLE, 0, ""), TROIKA_USAGE, "negative");
  refuses(troika_barrier(nullptr, ""), TROIKA_USAGE, "session is NULL");
  refuses(troika_model_create(session_, kRecipe, nullptr), TROIKA_USAGE, "model is NULL");
  EXPECT_EQ(value, 1);
}

TEST_F(CApi, NamesTheArgumentOfAModelThatIsWrong) {
  troika_model* model = create();
  const double input[] = {0.3, -0.4}, target[] = {0.1};
  double output = 7, loss = 7;
  std::int64_t steps = -1;
  refuses(troika_model_step(nullptr, input, target, 1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "model is NULL");
  refuses(troika_model_step(model, nullptr, target, 1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "inputs is NULL");
  refuses(troika_model_loss(nullptr, input, target, 1, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "model is NULL");
  refuses(troika_model_loss(model, input, target, 1, TROIKA_DOUBLE, nullptr), TROIKA_USAGE,
          "loss is NULL");
  refuses(troika_model_loss(model, input, target, 0, TROIKA_DOUBLE, &loss), TROIKA_USAGE,
          "no samples at all");
  refuses(troika_model_predict(nullptr, input, 1, TROIKA_DOUBLE, &output), TROIKA_USAGE,
          "model is NULL");
  refuses(troika_model_predict(model, nullptr, 1, TROIKA_DOUBLE, &output), TROIKA_USAGE,
          "inputs is NULL");
  refuses(troika_model_predict(model, input, 1, TROIKA_DOUBLE, nullptr), TROIKA_USAGE,
          "outputs is NULL");
  refuses(troika_model_predict(model, input, -1, TROIKA_DOUBLE, &output), TROIKA_USAGE,
          "a negative number of samples: -1");
  refuses(troika_model_save(model, ""), TROIKA_USAGE, "path is empty");
  refuses(troika_model_load_state(model, ""), TROIKA_USAGE, "path is empty");
  refuses(troika_model_predict(model, input, 1, TROIKA_INT64, &output), TROIKA_USAGE,
          "TROIKA_FLOAT or TROIKA_DOUBLE");
  refuses(troika_model_predict(model, input, 1, 9, &output), TROIKA_USAGE, "type 9");
  EXPECT_EQ(troika_model_predict(model, nullptr, 0, TROIKA_DOUBLE, nullptr), TROIKA_OK);
  refuses(troika_model_steps(nullptr, &steps), TROIKA_USAGE, "model is NULL");
  refuses(troika_model_steps(model, nullptr), TROIKA_USAGE, "steps is NULL");
  for (const auto save_or_load : {troika_model_save, troika_model_load}) {
    refuses(save_or_load(nullptr, "model.safetensors"), TROIKA_USAGE, "model is NULL");
    refuses(save_or_load(model, nullptr), TROIKA_USAGE, "path is NULL");
  }
  // Nothing has been written to, and the model goes on.
  EXPECT_EQ(output, 7);
  EXPECT_EQ(loss, 7);
  EXPECT_EQ(troika_model_step(model, input, target, 1, TROIKA_DOUBLE, nullptr), TROIKA_OK);
  EXPECT_EQ(troika_model_steps(model, &steps), TROIKA_OK);
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
}

// The first layer is of the same sizes, so that it could be taken in before the second is refused.
TEST_F(CApi, AFileOfAnotherModelChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "model.safetensors").string();
  std::string recipe = "seed = 3\n" + std::string(kRecipe);
  recipe.replace(recipe.find("output_dim = 1"), 14, "output_dim = 2");
  troika_model *model = create(), *other = create(recipe);
  ASSERT_EQ(troika_model_save(other, path.c_str()), TROIKA_OK) << troika_last_error();
  const double input[] = {0.3, -0.4};
  double before = 0, after = 1;
  ASSERT_EQ(troika_model_predict(model, input, 1, TROIKA_DOUBLE, &before), TROIKA_OK);
  refuses(troika_model_load(model, path.c_str()), TROIKA_DATA, "layers.1.");
  ASSERT_EQ(troika_model_predict(model, input, 1, TROIKA_DOUBLE, &after), TROIKA_OK);
  EXPECT_EQ(after, before);
  std::ofstream(path) << "no tensors";
  refuses(troika_model_load(model, path.c_str()), TROIKA_DATA, "model.safetensors");
  EXPECT_EQ(troika_model_free(model), TROIKA_OK);
  EXPECT_EQ(troika_model_free(other), TROIKA_OK);
}

TEST_F(CApi, ErrorsStayUntilTheNextAndBelongToTheirThread) {
  refuses(troika_rank(session_, nullptr), TROIKA_USAGE, "rank is NULL");
  EXPECT_EQ(troika_barrier(session_, nullptr), TROIKA_OK);
  EXPECT_STREQ(troika_last_error(), "rank is NULL");
  std::thread([] {
    EXPECT_STREQ(troika_last_error(), "");
    EXPECT_STREQ(troika_last_hint(), "");
    EXPECT_EQ(troika_barrier(nullptr, nullptr), TROIKA_USAGE);
  }).join();
  EXPECT_STREQ(troika_last_error(), "rank is NULL");
}

}  // namespace
}  // namespace troika
