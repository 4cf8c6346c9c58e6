// Losses that a recipe writes, from C: quantities are outputs, and have derivatives themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace troika {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPoints = 3;
constexpr const char* kPotential = R"toml(
seed = 5
[model]
kind = "mlp"
input_dim = 2
hidden_dims = [7]
output_dim = 1
activation = "tanh"
loss = "expression"
[loss]
targets = { energies = {}, reference_forces = { shape = [2] } }
value = "squared_error(energy, energies) + squared_error(forces, reference_forces)"
[loss.quantities]
energy = { value = "outputs[:, 0]" }
forces = { value = "-derivative(energy, features)", shape = [2] }
[train]
precision = "fp64"
)toml";

class CExpressions : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(troika_open_alone(nullptr, &session_), TROIKA_OK);
    ASSERT_EQ(troika_model_create(session_, kPotential, &model_), TROIKA_OK) << troika_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(troika_model_free(model_), TROIKA_OK);
    EXPECT_EQ(troika_close(session_), TROIKA_OK);
  }
  void predict() {
    const troika_array outputs[] = {{"forces", forces_.data(), 2 * kPoints, TROIKA_DOUBLE},
                                    {"energy", energy_.data(), kPoints, TROIKA_DOUBLE}};
    ASSERT_EQ(troika_model_predict_arrays(model_, &inputs_, 1, kPoints, outputs, 2), TROIKA_OK)
        << troika_last_error();
  }
  int step(double* loss) {
    const troika_array targets[] = {
        {"energies", energies_.data(), kPoints, TROIKA_DOUBLE},
        {"reference_forces", pulls_.data(), 2 * kPoints, TROIKA_DOUBLE}};
    return troika_model_step_arrays(model_, &inputs_, 1, targets, 2, kPoints, loss);
  }

  troika_session* session_ = nullptr;
  troika_model* model_ = nullptr;
  std::array<double, 2 *kPoints> x_ = {0.3, -0.2, 0.5, 1.1, -0.7, 0.4}, forces_ = {},
                                 pulls_ = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
  std::array<double, kPoints> energy_ = {}, energies_ = {1, -1, 0.5};
  troika_array inputs_ = {"features", x_.data(), 2 * kPoints, TROIKA_DOUBLE};
};

TEST_F(CExpressions, PredictQuantities) {
  predict();
  std::array<double, 2 * kPoints> slopes = {};
  const troika_array wanted = {"features", slopes.data(), 2 * kPoints, TROIKA_DOUBLE};
  ASSERT_EQ(troika_model_input_gradients(model_, &inputs_, 1, kPoints, "outputs", 0, &wanted, 1),
            TROIKA_OK);
  for (std::size_t i = 0; i < slopes.size(); ++i) EXPECT_EQ(forces_[i], -slopes[i]) << i;
}

TEST_F(CExpressions, DifferentiateQuantities) {
  std::array<double, 2 * kPoints> bends = {};
  const troika_array wanted = {"features", bends.data(), 2 * kPoints, TROIKA_DOUBLE};
  ASSERT_EQ(troika_model_input_gradients(model_, &inputs_, 1, kPoints, "forces", 1, &wanted, 1),
            TROIKA_OK)
      << troika_last_error();
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < x_.size(); ++i) {
    const double there = x_[i];
    x_[i] = there + kStep;
    predict();
    const double above = forces_[i / 2 * 2 + 1];
    x_[i] = there - kStep;
    predict();
    EXPECT_NEAR((above - forces_[i / 2 * 2 + 1]) / (2 * kStep), bends[i], 1e-8) << i;
    x_[i] = there;
  }
}

TEST_F(CExpressions, LossesLeaveMissingTargetsOut) {
  energies_[1] = std::numeric_limits<double>::quiet_NaN();
  predict();
  double expected = 0, loss = 0;
  for (std::size_t i = 0; i < kPoints; ++i) {
    if (i != 1) expected += std::pow(energy_[i] - energies_[i], 2);
    expected += (std::pow(forces_[2 * i] - pulls_[2 * i], 2) +
                 std::pow(forces_[2 * i + 1] - pulls_[2 * i + 1], 2)) /
                2;
  }
  ASSERT_EQ(step(&loss), TROIKA_OK) << troika_last_error();
  EXPECT_NEAR(loss, expected / kPoints, 1e-12);
  double next = 0;
  ASSERT_EQ(step(&next), TROIKA_OK);
  EXPECT_NE(next, loss);
}

TEST_F(CExpressions, AreRefusedInWords) {
  troika_model* other = nullptr;
  std::string recipe = kPotential;
  recipe.replace(recipe.find("-derivative(energy"), 18, "-derivative(enery");
  EXPECT_EQ(troika_model_create(session_, recipe.c_str(), &other), TROIKA_USAGE);
  EXPECT_THAT(std::string(troika_last_error()),
              HasSubstr("quantities.forces.value: undefined value enery in '-derivative(enery"));
  EXPECT_EQ(other, nullptr);
}

}  // namespace
}  // namespace troika
