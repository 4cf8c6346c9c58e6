// Derivatives of outputs with respect to inputs: those of the formula for a perceptron, and of
// differences for a network from a file; and what has none.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/checkpoint/tensors.h>
#include <troika/troika.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <support/script_file.h>
#include <support/temporary_folder.h>

namespace troika {
namespace {

using ::testing::HasSubstr;

class CGradients : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(troika_open_alone(nullptr, &session_), TROIKA_OK); }
  void TearDown() override {
    EXPECT_EQ(troika_model_free(model_), TROIKA_OK);
    EXPECT_EQ(troika_close(session_), TROIKA_OK);
  }

  void create(const std::string& recipe) {
    ASSERT_EQ(troika_model_create(session_, recipe.c_str(), &model_), TROIKA_OK)
        << troika_last_error();
  }
  // Writes the gradient of a component, or of the sum, to `gradient`.
  int differentiate(const char* output, std::int64_t component, const std::string& input,
                    std::vector<double>& gradient, std::int64_t samples) {
    const troika_array wanted = {input.c_str(), gradient.data(),
                                 static_cast<std::int64_t>(gradient.size()), TROIKA_DOUBLE};
    return troika_model_input_gradients(model_, inputs_.data(), static_cast<int>(inputs_.size()),
                                        samples, output, component, &wanted, 1);
  }
  void refuses(int status, const std::string& words) {
    EXPECT_EQ(status, TROIKA_USAGE);
    EXPECT_THAT(std::string(troika_last_error()), HasSubstr(words));
  }

  TemporaryFolder folder_;
  troika_session* session_ = nullptr;
  troika_model* model_ = nullptr;
  std::vector<troika_array> inputs_;
};

// y = b + V tanh(a + W x): dy_k/dx = V_k diag(1 - tanh^2) W.
TEST_F(CGradients, OfAPerceptronAreThoseOfItsFormula) {
  create(
      "seed = 5\n[model]\nkind = \"mlp\"\ninput_dim = 3\nhidden_dims = [7]\noutput_dim = 2\n"
      "activation = \"tanh\"\nloss = \"mean_square\"\n[train]\nprecision = \"fp64\"\n");
  constexpr std::int64_t kSamples = 5;
  std::vector<double> x(3 * kSamples);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i));
  inputs_ = {{"features", x.data(), 3 * kSamples, TROIKA_DOUBLE}};
  const std::string file = (folder_.path() / "net.safetensors").string();
  ASSERT_EQ(troika_model_save(model_, file.c_str()), TROIKA_OK);
  std::map<std::string, at::Tensor> saved;
  for (const NamedTensor& each : load_tensors(file)) saved[each.name] = each.tensor;
  const at::Tensor features = at::from_blob(x.data(), {kSamples, 3}, at::kDouble);
  const at::Tensor w = saved.at("layers.0.weight"), v = saved.at("layers.1.weight");
  const at::Tensor hidden = at::tanh(at::mm(features, w.t()) + saved.at("layers.0.bias"));
  const at::Tensor slope = 1 - hidden * hidden;
  const auto expect = [&](std::int64_t component, const at::Tensor& row) {
    std::vector<double> found(x.size(), -1);
    EXPECT_EQ(differentiate(nullptr, component, "features", found, kSamples), TROIKA_OK)
        << troika_last_error();
    const at::Tensor expected = at::mm(row * slope, w).contiguous();
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected.const_data_ptr<double>()[i], 1e-14) << component << " " << i;
    }
  };
  expect(0, v[0]);
  expect(1, v[1]);
  expect(-1, v[0] + v[1]);

  // Steps have nothing of it in their gradients.
  std::vector<double> y(2 * kSamples, 0.5), gradient(x.size());
  double loss = 0, again = 0;
  ASSERT_EQ(troika_model_step(model_, x.data(), y.data(), kSamples, TROIKA_DOUBLE, &loss),
            TROIKA_OK);
  ASSERT_EQ(troika_model_load(model_, file.c_str()), TROIKA_OK);
  ASSERT_EQ(differentiate("outputs", 0, "features", gradient, kSamples), TROIKA_OK);
  ASSERT_EQ(troika_model_step(model_, x.data(), y.data(), kSamples, TROIKA_DOUBLE, &again),
            TROIKA_OK);
  EXPECT_EQ(loss, again);

  std::vector<double> none;
  inputs_ = {{"features", x.data(), 0, TROIKA_DOUBLE}};
  EXPECT_EQ(differentiate(nullptr, -1, "features", none, 0), TROIKA_OK) << troika_last_error();
  inputs_ = {{"features", x.data(), 3 * kSamples, TROIKA_DOUBLE}};
  refuses(differentiate(nullptr, 2, "features", gradient, kSamples),
          "component 2 is none of output 'outputs', which has 2 values");
  refuses(differentiate("heat", 0, "features", gradient, kSamples), "no output 'heat'");
  refuses(differentiate(nullptr, 0, "targets", gradient, kSamples), "no gradient 'targets'");
  gradient.pop_back();
  refuses(differentiate(nullptr, 0, "features", gradient, kSamples),
          "gradient 'features' has 14 values for 5 samples");
}

TEST_F(CGradients, OfANetworkFromAFileAreThoseOfDifferences) {
  test::write_script_of_two_inputs(folder_.path() / "net.pt");
  create("[model]\nkind = \"torchscript\"\npath = \"" + (folder_.path() / "net.pt").string() +
         "\"\nloss = \"mean_square\"\n"
         "inputs = {x = {shape = [3]}, ids = {shape = [2], dtype = \"int64\", classes = 5}}\n"
         "targets = {score = {shape = [1]}}\n"
         "outputs = {score = {shape = [1]}, hidden = {shape = [4]}}\n"
         "[train]\nprecision = \"fp64\"\ndevice = \"cpu\"\n");
  constexpr std::int64_t kSamples = 4;
  std::vector<double> x(3 * kSamples);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<double>(i));
  std::vector<std::int64_t> ids = {0, 4, 1, 3, 2, 2, 4, 0};
  inputs_ = {{"x", x.data(), 3 * kSamples, TROIKA_DOUBLE},
             {"ids", ids.data(), 2 * kSamples, TROIKA_INT64}};
  const auto predicted = [&](const char* output, std::int64_t values, std::int64_t component) {
    std::vector<double> all(static_cast<std::size_t>(values * kSamples));
    const troika_array wanted = {output, all.data(), values * kSamples, TROIKA_DOUBLE};
    EXPECT_EQ(troika_model_predict_arrays(model_, inputs_.data(), 2, kSamples, &wanted, 1),
              TROIKA_OK)
        << troika_last_error();
    std::vector<double> numbers;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      numbers.push_back(all[static_cast<std::size_t>(i * values + component)]);
    }
    return numbers;
  };
  for (const auto& [output, values, component] :
       {std::tuple{"score", 1, 0}, {"hidden", 4, 0}, {"hidden", 4, 3}}) {
    std::vector<double> found(x.size(), -1);
    ASSERT_EQ(differentiate(output, component, "x", found, kSamples), TROIKA_OK)
        << troika_last_error();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double h = 1e-5, at = x[i];
      x[i] = at + h;
      const double above = predicted(output, values, component)[i / 3];
      x[i] = at - h;
      const double below = predicted(output, values, component)[i / 3];
      x[i] = at;
      EXPECT_NEAR(found[i], (above - below) / (2 * h), 1e-9) << output << " " << i;
    }
  }
  std::vector<double> gradient(static_cast<std::size_t>(2 * kSamples));
  refuses(differentiate("score", 0, "ids", gradient, kSamples),
          "gradient 'ids' is for TROIKA_INT64");
  std::vector<std::int64_t> whole(gradient.size());
  const troika_array wanted = {"ids", whole.data(), 2 * kSamples, TROIKA_INT64};
  refuses(troika_model_input_gradients(model_, inputs_.data(), 2, kSamples, "score", 0, &wanted, 1),
          "input 'ids' is of whole numbers: there is no derivative");
}

TEST_F(CGradients, OfAResNetAreThoseOfDifferences) {
  create(
      "[model]\nkind = \"resnet\"\nclasses = 3\nchannels = 1\nimage_size = 8\nblocks = [1]\n"
      "width = 2\nstem = \"32x32\"\n[train]\ndevice = \"cpu\"\nprecision = \"fp64\"\n");
  std::vector<double> image(64), gradient(64), logits(3);
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = std::sin(static_cast<double>(i * i));
  inputs_ = {{"images", image.data(), 64, TROIKA_DOUBLE}};
  ASSERT_EQ(differentiate(nullptr, 1, "images", gradient, 1), TROIKA_OK) << troika_last_error();
  const auto logit = [&] {
    EXPECT_EQ(troika_model_predict(model_, image.data(), 1, TROIKA_DOUBLE, logits.data()),
              TROIKA_OK);
    return logits[1];
  };
  for (const std::size_t pixel : {0, 27, 63}) {
    const double h = 1e-6, at = image[pixel];
    image[pixel] = at + h;
    const double above = logit();
    image[pixel] = at - h;
    const double below = logit();
    image[pixel] = at;
    EXPECT_NEAR(gradient[pixel], (above - below) / (2 * h), 1e-8) << pixel;
  }
}

TEST_F(CGradients, OfAModelWithoutOutputsAreRefused) {
  create(
      "[model]\nkind = \"gpt\"\nlayers = 1\ndim = 8\nheads = 1\nffn_dim = 8\nvocab_size = "
      "11\nseq_len = 4\n"
      "[train]\ndevice = \"cpu\"\n");
  std::vector<std::int64_t> tokens = {1, 2, 3, 4};
  std::vector<double> gradient(4);
  inputs_ = {{"tokens", tokens.data(), 4, TROIKA_INT64}};
  const int status =
      troika_model_input_gradients(model_, inputs_.data(), 1, 1, nullptr, 0, nullptr, 0);
  refuses(status, "the model keeps no outputs: kind = \"gpt\"");
}

}  // namespace
}  // namespace troika
