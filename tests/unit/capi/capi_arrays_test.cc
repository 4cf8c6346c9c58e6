// The C functions that take arrays by name, on a model from a TorchScript file: what they give, and
// what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <support/script_file.h>
#include <support/temporary_folder.h>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRows = 6;

class CArrays : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_script_of_two_inputs(folder_.path() / "net.pt");
    test::write_script(folder_.path() / "norm.pt");
    ASSERT_EQ(troika_open_alone(nullptr, &session_), TROIKA_OK);
    model_ = create(two_inputs());
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 3; ++j) x_.push_back(std::sin(3 * i + j));
      ids_.push_back(i % 5);
      ids_.push_back(4 - i % 3);
      score_.push_back(std::cos(i));
    }
  }
  void TearDown() override {
    EXPECT_EQ(troika_model_free(model_), TROIKA_OK);
    EXPECT_EQ(troika_close(session_), TROIKA_OK);
  }

  [[nodiscard]] std::string two_inputs() const {
    return "[model]\nkind = \"torchscript\"\npath = \"" + (folder_.path() / "net.pt").string() +
           "\"\nloss = \"mean_square\"\n"
           "inputs = {x = {shape = [3]}, ids = {shape = [2], dtype = \"int64\", classes = 5}}\n"
           "targets = {score = {shape = [1]}}\n"
           "outputs = {score = {shape = [1]}, hidden = {shape = [4]}}\n"
           "[train]\nsteps = 20\nprecision = \"fp64\"\ndevice = \"cpu\"\n"
           "[optimizer]\nkind = \"sgd\"\nlr = 0.1\nwarmup_steps = 2\nschedule = \"constant\"\n";
  }
  troika_model* create(const std::string& recipe) {
    troika_model* model = nullptr;
    EXPECT_EQ(troika_model_create(session_, recipe.c_str(), &model), TROIKA_OK)
        << troika_last_error();
    return model;
  }
  std::vector<troika_array> inputs() {
    return {{"ids", ids_.data(), 2 * kRows, TROIKA_INT32},
            {"x", x_.data(), 3 * kRows, TROIKA_DOUBLE}};
  }
  std::vector<troika_array> targets() { return {{"score", score_.data(), kRows, TROIKA_DOUBLE}}; }
  int step(const std::vector<troika_array>& inputs, const std::vector<troika_array>& targets,
           std::int64_t samples = kRows) {
    return troika_model_step_arrays(model_, inputs.data(), static_cast<int>(inputs.size()),
                                    targets.data(), static_cast<int>(targets.size()), samples,
                                    &loss_);
  }
  static void refuses(int status, const std::string& words) {
    EXPECT_EQ(status, TROIKA_USAGE) << words;
    EXPECT_EQ(std::string(troika_last_error()), words);
  }

  TemporaryFolder folder_;
  troika_session* session_ = nullptr;
  troika_model* model_ = nullptr;
  std::vector<double> x_, score_;
  std::vector<std::int32_t> ids_;
  double loss_ = 0;
};

TEST_F(CArrays, AModelSaysWhatItTakes) {
  const auto described = [&](int role) {
    std::vector<std::string> all;
    int count = -1;
    EXPECT_EQ(troika_model_tensor_count(model_, role, &count), TROIKA_OK);
    for (int i = 0; i < count; ++i) {
      troika_tensor tensor;
      EXPECT_EQ(troika_model_tensor(model_, role, i, &tensor), TROIKA_OK);
      std::string text = std::string(tensor.name) + " of " + std::to_string(tensor.values) + ":";
      for (int dim = 0; dim < tensor.dims; ++dim) text += " " + std::to_string(tensor.shape[dim]);
      if (tensor.type == TROIKA_INT64) text += ", below " + std::to_string(tensor.classes);
      EXPECT_EQ(tensor.optional, std::string(tensor.name) == "sample_weights" ? 1 : 0);
      all.push_back(text);
    }
    return all;
  };
  EXPECT_THAT(described(TROIKA_INPUT), ElementsAre("x of 3: 3", "ids of 2: 2, below 5"));
  EXPECT_THAT(described(TROIKA_TARGET), ElementsAre("score of 1: 1", "sample_weights of 1:"));
  EXPECT_THAT(described(TROIKA_OUTPUT), ElementsAre("score of 1: 1", "hidden of 4: 4"));
  int count = 7;
  troika_tensor tensor;
  refuses(troika_model_tensor_count(model_, 3, &count),
          "role 3 is none of TROIKA_INPUT, TROIKA_TARGET, TROIKA_OUTPUT");
  refuses(troika_model_tensor_count(nullptr, TROIKA_INPUT, &count), "model is NULL");
  refuses(troika_model_tensor_count(model_, TROIKA_INPUT, nullptr), "count is NULL");
  refuses(troika_model_tensor(model_, TROIKA_INPUT, 2, &tensor), "index 2 is none of 2 tensors");
  refuses(troika_model_tensor(model_, TROIKA_INPUT, -1, &tensor), "index -1 is none of 2 tensors");
  refuses(troika_model_tensor(model_, TROIKA_INPUT, 0, nullptr), "tensor is NULL");
  EXPECT_EQ(count, 7);
}

TEST_F(CArrays, LearnAndPredictByName) {
  ASSERT_EQ(step(inputs(), targets()), TROIKA_OK) << troika_last_error();
  const double first = loss_;
  for (int i = 1; i < 20; ++i) ASSERT_EQ(step(inputs(), targets()), TROIKA_OK);
  EXPECT_LT(loss_, first / 4);

  std::vector<float> score(kRows);
  std::vector<double> hidden(4 * kRows);
  const auto in = inputs();
  const troika_array out[] = {{"hidden", hidden.data(), 4 * kRows, TROIKA_DOUBLE},
                              {"score", score.data(), kRows, TROIKA_FLOAT}};
  ASSERT_EQ(troika_model_predict_arrays(model_, in.data(), 2, kRows, out, 2), TROIKA_OK)
      << troika_last_error();
  double squares = 0, loss = 0;
  for (int i = 0; i < kRows; ++i) squares += (score[i] - score_[i]) * (score[i] - score_[i]);
  const auto wanted = targets();
  ASSERT_EQ(troika_model_loss_arrays(model_, in.data(), 2, wanted.data(), 1, kRows, &loss),
            TROIKA_OK);
  EXPECT_NEAR(loss, squares / kRows, 1e-6);
  for (const double each : hidden) EXPECT_LE(std::abs(each), 1);
  EXPECT_NE(hidden[0], 0);
}

TEST_F(CArrays, LossesAndTheLearningRateAreThereToRead) {
  double rate = 0, losses[3] = {7, 7, 7};
  std::int64_t count = -1;
  ASSERT_EQ(troika_model_losses(model_, 3, losses, &count), TROIKA_OK);
  EXPECT_EQ(count, 0);
  ASSERT_EQ(troika_model_learning_rate(model_, &rate), TROIKA_OK);
  EXPECT_NEAR(rate, 0.05, 1e-15);  // of the warm-up
  std::vector<double> seen;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(step(inputs(), targets()), TROIKA_OK);
    seen.push_back(loss_);
  }
  ASSERT_EQ(troika_model_losses(model_, 3, losses, &count), TROIKA_OK);
  EXPECT_EQ(count, 3);
  EXPECT_THAT(losses, ElementsAre(seen[1], seen[2], seen[3]));
  ASSERT_EQ(troika_model_learning_rate(model_, &rate), TROIKA_OK);
  EXPECT_NEAR(rate, 0.1, 1e-15);
  EXPECT_EQ(troika_model_losses(model_, 0, nullptr, &count), TROIKA_OK);
  EXPECT_EQ(count, 0);
  refuses(troika_model_losses(model_, 1, nullptr, &count), "losses is NULL");
  refuses(troika_model_losses(model_, -1, losses, &count), "a negative limit: -1");
  refuses(troika_model_learning_rate(model_, nullptr), "rate is NULL");
}

TEST_F(CArrays, AreRefusedInOneLineAndTheSessionGoesOn) {
  const auto wrong = [&](const char* words, auto change) {
    std::vector<troika_array> in = inputs(), out = targets();
    change(in, out);
    refuses(step(in, out), words);
    refuses(troika_model_loss_arrays(model_, in.data(), static_cast<int>(in.size()), out.data(),
                                     static_cast<int>(out.size()), kRows, &loss_),
            words);
  };
  using List = std::vector<troika_array>;
  wrong("the model has no input 'z'", [](List& in, List&) { in[1].name = "z"; });
  EXPECT_STREQ(troika_last_hint(), "the inputs of the model: 'x', 'ids'");
  wrong("input 'x' is missing", [](List& in, List&) { in.pop_back(); });
  wrong("target 'score' is missing", [](List&, List& out) { out.clear(); });
  wrong("input 'x' is given twice", [](List& in, List&) { in.push_back(in[1]); });
  wrong("inputs[1], 'x': type 9 is none of TROIKA_FLOAT, TROIKA_DOUBLE, TROIKA_INT32, TROIKA_INT64",
        [](List& in, List&) { in[1].type = 9; });
  wrong("inputs[1], 'x' is NULL", [](List& in, List&) { in[1].data = nullptr; });
  wrong("the name of inputs[0] is NULL", [](List& in, List&) { in[0].name = nullptr; });
  wrong("inputs[1], 'x': a negative number of values", [](List& in, List&) { in[1].count = -1; });
  wrong("input 'x' has 17 values for 6 samples", [](List& in, List&) { in[1].count = 17; });
  EXPECT_STREQ(troika_last_hint(), "one sample has 3 values, of shape [3]");
  ids_[5] = 5;
  wrong("input 'ids': sample 2 has 5, not a whole number from 0 to 4", [](List&, List&) {});
  EXPECT_STREQ(troika_last_hint(), "samples are counted from 0");
  ids_[5] = 4;
  refuses(troika_model_step_arrays(model_, nullptr, 2, nullptr, 0, kRows, nullptr),
          "inputs is NULL");
  refuses(troika_model_step_arrays(model_, nullptr, -1, nullptr, 0, kRows, nullptr),
          "a negative number of inputs: -1");
  refuses(step(inputs(), targets(), -1), "a negative number of samples: -1");
  refuses(troika_model_step(model_, x_.data(), score_.data(), kRows, TROIKA_DOUBLE, &loss_),
          "the model has 2 inputs: 'x', 'ids'");
  EXPECT_THAT(std::string(troika_last_hint()), HasSubstr("troika_model_step_arrays()"));
  std::int64_t steps = -1;
  EXPECT_EQ(troika_model_steps(model_, &steps), TROIKA_OK);
  EXPECT_EQ(steps, 0);
  EXPECT_EQ(step(inputs(), targets()), TROIKA_OK) << troika_last_error();
}

TEST_F(CArrays, OutputsAreRefusedBeforeTheyAreWrittenTo) {
  const auto in = inputs();
  double score[kRows] = {7};
  std::int64_t whole[kRows];
  const auto refuse = [&](troika_array out, const char* words) {
    refuses(troika_model_predict_arrays(model_, in.data(), 2, kRows, &out, 1), words);
  };
  refuse({"scores", score, kRows, TROIKA_DOUBLE}, "the model has no output 'scores'");
  EXPECT_STREQ(troika_last_hint(), "the outputs of the model: 'score', 'hidden'");
  refuse({"hidden", score, kRows, TROIKA_DOUBLE}, "output 'hidden' has 6 values for 6 samples");
  refuse({"score", whole, kRows, TROIKA_INT64},
         "output 'score' is for TROIKA_FLOAT or TROIKA_DOUBLE");
  refuse({"score", nullptr, kRows, TROIKA_DOUBLE}, "outputs[0], 'score' is NULL");
  const troika_array out = {"score", score, kRows, TROIKA_DOUBLE};
  refuses(troika_model_predict_arrays(model_, in.data(), 1, kRows, &out, 1),
          "input 'x' is missing");
  const troika_array twice[] = {out, out};
  refuses(troika_model_predict_arrays(model_, in.data(), 2, kRows, twice, 2),
          "output 'score' is given twice");
  EXPECT_EQ(score[0], 7);
  EXPECT_EQ(troika_model_predict_arrays(model_, in.data(), 2, kRows, &out, 1), TROIKA_OK);
  EXPECT_NE(score[0], 7);
  const troika_array none[] = {{"ids", nullptr, 0, TROIKA_INT32}, {"x", nullptr, 0, TROIKA_DOUBLE}};
  const troika_array empty = {"score", nullptr, 0, TROIKA_DOUBLE};
  EXPECT_EQ(troika_model_predict_arrays(model_, none, 2, 0, &empty, 1), TROIKA_OK)
      << troika_last_error();
}

// With its running statistics, and the script beside it.
TEST_F(CArrays, AModelWithBatchNormIsSavedWhole) {
  const std::string recipe =
      "[model]\nkind = \"torchscript\"\npath = \"" + (folder_.path() / "norm.pt").string() +
      "\"\ninputs = {x = {shape = [6]}}\ntargets = {y = {classes = 3}}\n"
      "[train]\nsteps = 20\nprecision = \"fp64\"\ndevice = \"cpu\"\n[optimizer]\nlr = 0.1\n";
  troika_model *trained = create(recipe), *again = create(recipe);
  const double classes[] = {0, 1, NAN};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(troika_model_step(trained, x_.data(), classes, 3, TROIKA_DOUBLE, &loss_), TROIKA_OK)
        << troika_last_error();
  }
  const auto predicted = [&](troika_model* model) {
    std::vector<double> outputs(9);
    EXPECT_EQ(troika_model_predict(model, x_.data(), 3, TROIKA_DOUBLE, outputs.data()), TROIKA_OK);
    return outputs;
  };
  const std::string file = (folder_.path() / "trained.safetensors").string();
  ASSERT_EQ(troika_model_save(trained, file.c_str()), TROIKA_OK) << troika_last_error();
  EXPECT_NE(predicted(again), predicted(trained));
  ASSERT_EQ(troika_model_load(again, file.c_str()), TROIKA_OK) << troika_last_error();
  EXPECT_EQ(predicted(again), predicted(trained));

  torch::jit::Module script = torch::jit::load((folder_.path() / "trained.pt").string());
  script.eval();
  const at::Tensor x = at::tensor(x_).view({3, 6}).to(at::kFloat);
  EXPECT_TRUE(at::allclose(script.forward({x}).toTensor().to(at::kDouble),
                           at::tensor(predicted(trained)).view({3, 3}), 1e-5, 1e-6));
  refuses(troika_model_save(trained, (folder_.path() / "x.pt").c_str()),
          "'" + (folder_.path() / "x.pt").string() +
              "' would be two files: parameters, and the script");
  EXPECT_EQ(troika_model_free(again), TROIKA_OK);
  EXPECT_EQ(troika_model_free(trained), TROIKA_OK);
}

// Tokens in, tokens out: of the loss alone, since its head keeps no logits.
TEST_F(CArrays, AGptLearnsAndPredictsNothing) {
  troika_model* gpt = create(
      "[model]\nkind = \"gpt\"\nlayers = 1\ndim = 32\nheads = 2\nffn_dim = 48\nvocab_size = 256\n"
      "seq_len = 4\n[train]\nsteps = 20\ndevice = \"cpu\"\n[optimizer]\nlr = 0.01\n");
  const double tokens[] = {1, 2, 3, 4, 4, 3, 2, 1};
  std::int64_t next[] = {2, 3, 4, -100, 3, 2, 1, -100};
  troika_array in = {"input_ids", const_cast<double*>(tokens), 8, TROIKA_DOUBLE};
  troika_array out = {"targets", next, 8, TROIKA_INT64};
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(troika_model_step_arrays(gpt, &in, 1, &out, 1, 2, i == 0 ? &first : &last), TROIKA_OK)
        << troika_last_error();
  }
  EXPECT_NEAR(first, std::log(256), 0.5);
  EXPECT_LT(last, first - 0.1);
  EXPECT_EQ(troika_model_predict(gpt, tokens, 2, TROIKA_DOUBLE, nullptr), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()),
              HasSubstr("the model keeps no outputs: kind = \"gpt\""));
  EXPECT_EQ(troika_model_free(gpt), TROIKA_OK);
}

TEST_F(CArrays, AFileThatCannotBeUsedIsRefused) {
  std::string recipe = two_inputs();
  recipe.replace(recipe.find("net.pt"), 6, "not.pt");
  troika_model* none = nullptr;
  EXPECT_EQ(troika_model_create(session_, recipe.c_str(), &none), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()), HasSubstr("not.pt"));
  recipe = two_inputs();
  recipe.replace(recipe.find("classes = 5"), 11, "classes = 9");
  EXPECT_EQ(troika_model_create(session_, recipe.c_str(), &none), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()), HasSubstr("index out of range"));
  EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace troika
