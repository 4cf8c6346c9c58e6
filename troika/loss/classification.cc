// Accuracy, top-k accuracy and F1: counts of samples, added up over the ranks.
#include <ATen/ATen.h>
#include <troika/loss/metric.h>
#include <troika/nn/microbatch.h>

#include <charconv>

namespace troika {
namespace {

bool is_binary(const MetricSubject& subject) {
  return subject.loss->target_meaning() == TargetMeaning::kAnswers;
}

std::string refuse_all_but_classes(const MetricSubject& subject) {
  if (subject.loss->target_meaning() != TargetMeaning::kValues) return "";
  return "counts classes, and the loss is " + std::string(subject.loss->name());
}

// Answers that each output gives: yes where its logit is above 0. Missing targets stay missing.
struct Answers {
  at::Tensor there, predicted, actual;  // bool, the shape of the outputs

  Answers(const at::Tensor& outputs, const at::Tensor& targets)
      : there(targets.eq(targets)),
        predicted(outputs.gt(0).logical_and(there)),
        actual(targets.gt(0.5).logical_and(there)) {}
};

// Adds up to {right, counted}.
class Share : public Metric {
 public:
  void add(const at::Tensor& outputs, const at::Tensor& targets) final {
    const auto [right, counted] = count(outputs, targets);
    sums_.add_(at::stack({right, counted}).to(at::kCPU, at::kDouble));
  }
  [[nodiscard]] at::Tensor sums() const final { return sums_; }
  [[nodiscard]] std::optional<double> value(const at::Tensor& sums, const at::Tensor&,
                                            double) const final {
    const auto counted = sums[1].item<double>();
    if (counted == 0) return std::nullopt;
    return sums[0].item<double>() / counted;
  }

 protected:
  [[nodiscard]] virtual std::pair<at::Tensor, at::Tensor> count(
      const at::Tensor& outputs, const at::Tensor& targets) const = 0;

 private:
  at::Tensor sums_ = at::zeros({2}, at::kDouble);
};

class BinaryAccuracy final : public Share {
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> count(const at::Tensor& outputs,
                                                        const at::Tensor& targets) const override {
    const Answers answers(outputs, targets);
    const at::Tensor right = answers.predicted.eq(answers.actual).logical_and(answers.there);
    return {right.sum(), answers.there.sum()};
  }
};

// The target is among the k classes with the largest outputs. Of equal outputs the first class
// counts as the largest, as argmax has it.
class TopK final : public Share {
 public:
  explicit TopK(std::int64_t k) : k_(k) {}

 private:
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> count(const at::Tensor& outputs,
                                                        const at::Tensor& targets) const override {
    const at::Tensor counts = targets.ne(kIgnoredTarget);
    const at::Tensor known = targets.masked_fill(counts.logical_not(), 0).unsqueeze(1);
    const at::Tensor own = outputs.gather(1, known);
    const at::Tensor classes = at::arange(outputs.size(1), targets.options()).unsqueeze(0);
    const at::Tensor before =
        outputs.gt(own).logical_or(outputs.eq(own).logical_and(classes.lt(known))).sum(1);
    // Outputs that are not a number are right about nothing.
    const at::Tensor right = before.lt(k_).logical_and(own.squeeze(1).isnan().logical_not());
    return {right.logical_and(counts).sum(), counts.sum()};
  }

  std::int64_t k_;
};

class AccuracyKind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "accuracy"; }
  [[nodiscard]] std::string refusal(std::string_view, const MetricSubject& subject) const override {
    return refuse_all_but_classes(subject);
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view,
                                             const MetricSubject& subject) const override {
    if (is_binary(subject)) return std::make_unique<BinaryAccuracy>();
    return std::make_unique<TopK>(1);
  }
};

class TopKKind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "top_K"; }
  [[nodiscard]] bool is_named(std::string_view word) const override { return k_of(word) > 0; }
  [[nodiscard]] std::string refusal(std::string_view word,
                                    const MetricSubject& subject) const override {
    if (subject.loss->target_meaning() != TargetMeaning::kClass) {
      return "counts classes, and the loss is " + std::string(subject.loss->name());
    }
    if (k_of(word) < subject.outputs) return "";
    return "counts every sample: there are " + std::to_string(subject.outputs) + " classes";
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view word,
                                             const MetricSubject&) const override {
    return std::make_unique<TopK>(k_of(word));
  }

 private:
  // 0: it is no such word.
  static std::int64_t k_of(std::string_view word) {
    constexpr std::string_view kPrefix = "top_";
    if (!word.starts_with(kPrefix)) return 0;
    const std::string_view digits = word.substr(kPrefix.size());
    std::int64_t k = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
    return error == std::errc() && end == digits.data() + digits.size() ? k : 0;
  }
};

// F1 of each class that occurs, or of each output, and the mean of these (macro F1); with two
// classes the F1 of class 1. Adds up true positives, false positives and false negatives.
class F1 final : public Metric {
 public:
  explicit F1(const MetricSubject& subject)
      : binary_(is_binary(subject)),
        classes_(subject.outputs),
        sums_(at::zeros({3 * subject.outputs}, at::kDouble)) {}

  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    at::Tensor predicted, actual;  // [samples, classes]
    if (binary_) {
      const Answers answers(outputs, targets);
      predicted = answers.predicted;
      actual = answers.actual;
    } else {
      const at::Tensor counts = targets.ne(kIgnoredTarget).unsqueeze(1);
      const at::Tensor classes = at::arange(classes_, targets.options()).unsqueeze(0);
      predicted = outputs.argmax(1, true).eq(classes).logical_and(counts);
      actual = targets.unsqueeze(1).eq(classes);
    }
    const at::Tensor hits = predicted.logical_and(actual);
    sums_.add_(at::cat({hits.sum(0), predicted.sum(0) - hits.sum(0), actual.sum(0) - hits.sum(0)})
                   .to(at::kCPU, at::kDouble));
  }
  [[nodiscard]] at::Tensor sums() const override { return sums_; }
  [[nodiscard]] std::optional<double> value(const at::Tensor& sums, const at::Tensor&,
                                            double) const override {
    const bool only_one = !binary_ && classes_ == 2;
    const auto* counts = sums.const_data_ptr<double>();
    double total = 0;
    int there = 0;
    for (std::int64_t i = only_one ? 1 : 0; i < classes_; ++i) {
      const double hits = counts[i], wrong = counts[classes_ + i] + counts[2 * classes_ + i];
      if (hits + wrong == 0) continue;
      total += 2 * hits / (2 * hits + wrong);
      ++there;
    }
    if (there == 0) return std::nullopt;
    return total / there;
  }

 private:
  bool binary_;
  std::int64_t classes_;
  at::Tensor sums_;
};

class F1Kind final : public MetricKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "f1"; }
  [[nodiscard]] std::string refusal(std::string_view, const MetricSubject& subject) const override {
    return refuse_all_but_classes(subject);
  }
  [[nodiscard]] std::unique_ptr<Metric> make(std::string_view,
                                             const MetricSubject& subject) const override {
    return std::make_unique<F1>(subject);
  }
};

}  // namespace

const MetricKind& accuracy_metric() {
  static const AccuracyKind kKind;
  return kKind;
}

const MetricKind& top_k_metric() {
  static const TopKKind kKind;
  return kKind;
}

const MetricKind& f1_metric() {
  static const F1Kind kKind;
  return kKind;
}

}  // namespace troika
