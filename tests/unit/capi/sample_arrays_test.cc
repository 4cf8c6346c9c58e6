// Arrays of a program become the tensors of a microbatch, or are refused in one line.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/capi/sample_arrays.h>
#include <troika/nn/microbatch.h>

#include <cmath>
#include <limits>
#include <string>

namespace troika {
namespace {

using ::testing::ElementsAre;

// Two inputs, one that may be left out, and a class.
SampleSpec described_sample() {
  TensorSpec more{"more", at::kFloat, {}};
  more.optional = true;
  TensorSpec target{"y", at::kLong, {}, 3};
  target.role = TensorRole::kTarget;
  return {{{"x", at::kFloat, {2}}, {"ids", at::kLong, {2}, 5}, target, more}};
}

const at::Tensor kX = at::tensor({0.5F, 1.0F, 1.5F, 2.0F});

ArrayBatch good_batch() {
  return {
      2, {{"ids", at::tensor({0, 1, 2, 4}, at::kInt)}, {"x", kX}}, {{"y", at::tensor({2.0, NAN})}}};
}

TEST(SampleArrays, AreConvertedAndOrdered) {
  const TensorMap tensors = sample_tensors(described_sample(), good_batch(), at::kDouble);
  ASSERT_EQ(tensors.size(), 3);
  EXPECT_TRUE(tensors[0].equal(at::tensor({0.5, 1.0, 1.5, 2.0}).view({2, 2})));
  EXPECT_TRUE(tensors[1].equal(at::tensor({0, 1, 2, 4}, at::kLong).view({2, 2})));
  EXPECT_TRUE(tensors[2].equal(at::tensor({2L, kIgnoredTarget})));
  EXPECT_EQ(targets_that_count(described_sample(), tensors), 1);
  EXPECT_EQ(sample_tensors(described_sample(), good_batch(), at::kFloat)[0].scalar_type(),
            at::kFloat);
}

// A module that writes to its input does not write to the program's array.
TEST(SampleArrays, AreCopies) {
  const TensorMap tensors = sample_tensors(described_sample(), good_batch(), at::kFloat);
  tensors[0].zero_();
  EXPECT_EQ(kX.sum().item<float>(), 5);
}

TEST(SampleArrays, OptionalOnesComeLastAndTargetsOfPredictionsAreZero) {
  ArrayBatch batch = good_batch();
  batch.inputs.push_back({"more", at::tensor({7L, 8L})});
  const TensorMap tensors = sample_tensors(described_sample(), batch, at::kFloat);
  EXPECT_TRUE(tensors.at("more").equal(at::tensor({7.0F, 8.0F})));
  const TensorMap alone = input_tensors(described_sample(), 2, good_batch().inputs, at::kFloat);
  EXPECT_TRUE(alone.at("y").equal(at::zeros({2}, at::kLong)));
  EXPECT_EQ(without_samples(described_sample(), at::kFloat).at("ids").sizes(),
            at::IntArrayRef({0, 2}));
}

// Answers of yes and no are floating-point numbers with a range, and may be missing.
TEST(SampleArrays, ValuesWithARange) {
  TensorSpec target{"yes", at::kFloat, {2}, 2};
  target.role = TensorRole::kTarget;
  const SampleSpec sample{{{"x", at::kFloat, {}}, target}};
  const auto given = [&](double second) {
    return sample_tensors(sample, {1, {{"x", at::ones({1})}}, {{"yes", at::tensor({1.0, second})}}},
                          at::kDouble)
        .at("yes");
  };
  EXPECT_TRUE(std::isnan(given(NAN)[0][1].item<double>()));
  EXPECT_THROW((void)given(-100), UsageError);
  EXPECT_THROW((void)given(0.5), UsageError);
}

struct RefusedArrays {
  const char* line;
  void (*change)(ArrayBatch&);
};

std::string refusal_of(const ArrayBatch& batch) {
  try {
    (void)sample_tensors(described_sample(), batch, at::kDouble);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing is refused";
}

TEST(SampleArrays, RefuseInOneLine) {
  const RefusedArrays table[] = {
      {"the model has no input 'z'", [](ArrayBatch& b) { b.inputs[1].name = "z"; }},
      {"the model has no target 'x'", [](ArrayBatch& b) { b.targets[0].name = "x"; }},
      {"input 'ids' is missing", [](ArrayBatch& b) { b.inputs.erase(b.inputs.begin()); }},
      {"target 'y' is missing", [](ArrayBatch& b) { b.targets.clear(); }},
      {"input 'x' is given twice",
       [](ArrayBatch& b) {
         b.inputs.push_back({"x", kX});
       }},
      {"input 'x' has 3 values for 2 samples",
       [](ArrayBatch& b) { b.inputs[1].tensor = kX.narrow(0, 0, 3); }},
      {"target 'y' has 1 value for 2 samples",
       [](ArrayBatch& b) { b.targets[0].tensor = at::ones({1}); }},
      {"input 'x' has 4 values for 3 samples", [](ArrayBatch& b) { b.samples = 3; }},
      {"a negative number of samples: -1", [](ArrayBatch& b) { b.samples = -1; }},
      {"input 'ids': sample 1 has 5, not a whole number from 0 to 4",
       [](ArrayBatch& b) { b.inputs[0].tensor[3] = 5; }},
      {"input 'ids': sample 0 has -100, not a whole number from 0 to 4",
       [](ArrayBatch& b) { b.inputs[0].tensor[0] = -100; }},
      {"input 'ids': sample 1 has nan, not a whole number from 0 to 4",
       [](ArrayBatch& b) {
         b.inputs[0].tensor = at::tensor({0.0, 1.0, NAN, 9.0});
       }},
      {"target 'y': sample 0 has 1.5, not a whole number from 0 to 2",
       [](ArrayBatch& b) {
         b.targets[0].tensor = at::tensor({1.5, 0.0});
       }},
      {"target 'y': sample 1 has -1, not a whole number from 0 to 2",
       [](ArrayBatch& b) {
         b.targets[0].tensor = at::tensor({1L, -1L});
       }},
  };
  for (const RefusedArrays& each : table) {
    ArrayBatch batch = good_batch();
    each.change(batch);
    EXPECT_EQ(refusal_of(batch), each.line);
  }
  EXPECT_EQ(refusal_of(good_batch()), "nothing is refused");
}

TEST(SampleArrays, WholeNumbersWithoutARange) {
  const SampleSpec sample{{{"n", at::kLong, {}}}};
  const auto given = [&](const at::Tensor& n) {
    return sample_tensors(sample, {1, {{"n", n}}, {}}, at::kFloat)[0].item<std::int64_t>();
  };
  EXPECT_EQ(given(at::full({1}, -7.0)), -7);
  EXPECT_EQ(given(at::full({1}, std::int64_t{1} << 60, at::kLong)), std::int64_t{1} << 60);
  EXPECT_THROW((void)given(at::full({1}, std::numeric_limits<double>::infinity())), UsageError);
}

TEST(SampleArrays, OneThatHasNoNameIsTheOnlyOne) {
  const SampleSpec sample = described_sample();
  const auto inputs = specs_of(sample, TensorRole::kInput);
  EXPECT_EQ(only_spec(specs_of(sample, TensorRole::kTarget), "target", "").name, "y");
  try {
    (void)only_spec(inputs, "input", "by name");
    ADD_FAILURE() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "the model has 3 inputs: 'x', 'ids', 'more' (optional)");
    EXPECT_EQ(error.hint(), "by name");
  }
}

}  // namespace
}  // namespace troika
