// Metrics against counts by hand; scikit-learn judges them in tests/command/metrics_test.py.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/loss/metric.h>

#include <cmath>
#include <limits>

namespace troika {
namespace {

using ::testing::HasSubstr;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

MetricSubject classes_of(std::int64_t outputs) {
  return {"mlp", &cross_entropy_kind(), outputs, true};
}
MetricSubject answers_of(std::int64_t outputs) {
  return {"mlp", &binary_cross_entropy_kind(), outputs, true};
}

// The value of one rank that has seen all samples, in two parts.
std::optional<double> value_of(std::string_view word, const MetricSubject& subject,
                               const at::Tensor& outputs, const at::Tensor& targets) {
  const auto metric = find_metric(word)->make(word, subject);
  const std::int64_t first = outputs.size(0) / 3;
  for (const auto& [begin, count] :
       {std::pair<std::int64_t, std::int64_t>(0, first), {first, outputs.size(0) - first}}) {
    if (count > 0) metric->add(outputs.narrow(0, begin, count), targets.narrow(0, begin, count));
  }
  return metric->value(metric->sums(), metric->rows(), 0.5);
}

const at::Tensor kLogits = at::tensor({3.0, 1.0, 2.0,   // 0
                                       0.0, 1.0, 2.0,   // 2
                                       1.0, 1.0, 0.0,   // 0, tied with 1
                                       0.0, 5.0, 1.0})  // 1
                               .view({4, 3});

TEST(Metrics, AccuracyAndTopK) {
  const at::Tensor targets = at::tensor({0, 1, 1, -100}, at::kLong);
  EXPECT_DOUBLE_EQ(*value_of("accuracy", classes_of(3), kLogits, targets), 1.0 / 3);
  EXPECT_DOUBLE_EQ(*value_of("top_2", classes_of(3), kLogits, targets), 1);
  EXPECT_FALSE(value_of("accuracy", classes_of(3), kLogits, targets.clone().fill_(-100)));
  const at::Tensor answers = at::tensor({1.0, 0.0, kMissing, 0.0}).view({2, 2});
  const at::Tensor logits = at::tensor({0.3, 0.1, 5.0, -2.0}).view({2, 2});
  EXPECT_DOUBLE_EQ(*value_of("accuracy", answers_of(2), logits, answers), 2.0 / 3);
}

// Classes 0 and 1: F1 2/3 each; class 2 is predicted once and never right.
TEST(Metrics, F1IsTheMeanOverClasses) {
  const at::Tensor targets = at::tensor({0, 1, 1, 1}, at::kLong);
  EXPECT_DOUBLE_EQ(*value_of("f1", classes_of(3), kLogits, targets), (2.0 / 3 + 0.5 + 0) / 3);
  const at::Tensor two = kLogits.narrow(1, 0, 2).contiguous();  // predicts 0 1 0 1
  EXPECT_DOUBLE_EQ(*value_of("f1", classes_of(2), two, targets), 2.0 * 2 / (2 * 2 + 0 + 1));
}

TEST(Metrics, AucCountsTiesHalf) {
  const at::Tensor targets = at::tensor({1, 0, 1, 0, 1}, at::kLong);
  const at::Tensor scores = at::tensor({0.9, 0.1, 0.4, 0.4, 0.8}, at::kDouble);
  const at::Tensor logits = at::stack({at::zeros({5}, at::kDouble), scores}, 1);
  // Pairs of a positive and a negative: five of six in order, the tie half.
  EXPECT_DOUBLE_EQ(*value_of("auc", classes_of(2), logits, targets), 5.5 / 6);
  EXPECT_FALSE(value_of("auc", classes_of(2), logits, at::ones_like(targets)));
  const at::Tensor column = targets.to(at::kDouble).unsqueeze(1);
  EXPECT_DOUBLE_EQ(*value_of("auc", answers_of(1), scores.unsqueeze(1), column), 5.5 / 6);
}

TEST(Metrics, RmseAndPerplexity) {
  const at::Tensor values = at::tensor({1.0, 2.0, 3.0, 5.0}, at::kDouble).view({4, 1});
  const at::Tensor targets = at::tensor({1.0, 4.0, kMissing, 5.0}, at::kDouble).view({4, 1});
  const MetricSubject of_values{"mlp", &mean_square_kind(), 1, true};
  EXPECT_DOUBLE_EQ(*value_of("rmse", of_values, values, targets), std::sqrt(4.0 / 3));
  const at::Tensor even = at::zeros({4, 8});
  const at::Tensor some = at::tensor({0, 3, -100, 7}, at::kLong);
  EXPECT_NEAR(*value_of("perplexity", classes_of(8), even, some), 8, 1e-6);
  const MetricSubject gpt{"gpt", &cross_entropy_kind(), 256, false};
  EXPECT_DOUBLE_EQ(*value_of("perplexity", gpt, even, some), std::exp(0.5));
}

TEST(Metrics, RefusalsNameTheReason) {
  EXPECT_EQ(metric_refusal("accuracy", classes_of(3)), "");
  EXPECT_THAT(metric_refusal("acuracy", classes_of(3)), HasSubstr("did you mean 'accuracy'?"));
  EXPECT_THAT(metric_refusal("top_3", classes_of(3)), HasSubstr("there are 3 classes"));
  EXPECT_THAT(metric_refusal("top_0", classes_of(3)), HasSubstr("unknown metric"));
  EXPECT_THAT(metric_refusal("auc", classes_of(3)), HasSubstr("there are 3"));
  EXPECT_THAT(metric_refusal("rmse", classes_of(3)), HasSubstr("the loss is cross_entropy"));
  const MetricSubject gpt{"gpt", &cross_entropy_kind(), 256, false};
  EXPECT_THAT(metric_refusal("accuracy", gpt), HasSubstr("kind = \"gpt\" never keeps them"));
  EXPECT_EQ(metric_refusal("perplexity", gpt), "");
}

}  // namespace
}  // namespace troika
