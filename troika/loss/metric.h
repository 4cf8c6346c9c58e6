// The metrics that [train] metrics can name: what an evaluation says of a model beside its loss.
// Each adds up, or gathers, what it needs over all samples and ranks, and computes its value once
// from that: never a mean of means.
#pragma once

#include <troika/loss/loss.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The model and loss that a metric judges.
struct MetricSubject {
  std::string_view model;  // the kind's name, for messages
  const LossKind* loss = nullptr;
  std::int64_t outputs = 1;
  // True if the model gives its outputs; otherwise only its loss is known.
  bool gives_outputs = true;
};

// The metric of one evaluation. Not thread safe.
class Metric {
 public:
  virtual ~Metric() = default;
  // Takes the model's outputs [samples, n] and targets of some samples.
  virtual void add(const at::Tensor& outputs, const at::Tensor& targets) = 0;
  // Returns the values that ranks add up, fp64 [k] in host memory; undefined if there are none.
  [[nodiscard]] virtual at::Tensor sums() const { return {}; }
  // Returns the values that ranks concatenate, fp64 [samples, k] in host memory with k > 0, also
  // for zero samples; undefined if there are none.
  [[nodiscard]] virtual at::Tensor rows() const { return {}; }
  // Computes the value from the sums and the rows of all ranks and the mean loss. Returns nullopt
  // where it is not defined, as an AUC without a positive.
  [[nodiscard]] virtual std::optional<double> value(const at::Tensor& sums, const at::Tensor& rows,
                                                    double mean_loss) const = 0;
};

enum class Better { kHigher, kLower };

class MetricKind {
 public:
  virtual ~MetricKind() = default;
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const MetricKind* const> all();

  // Returns its word in a recipe, or the pattern of its words: "top_K".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Returns whether `word` names it: "top_5".
  [[nodiscard]] virtual bool is_named(std::string_view word) const { return word == name(); }
  [[nodiscard]] virtual Better better() const { return Better::kHigher; }
  // Returns what its samples have to have for it to have a value.
  [[nodiscard]] virtual std::string_view value_needs() const { return "a target that counts"; }
  // Returns whether it judges outputs, and not the loss alone.
  [[nodiscard]] virtual bool needs_outputs(const MetricSubject&) const { return true; }
  // Returns whether it is in the unit of what it judges, so that several values with names of their
  // own are judged one by one as well.
  [[nodiscard]] virtual bool has_unit() const { return false; }
  // Returns why it cannot judge this, as a clause; empty if it can.
  [[nodiscard]] virtual std::string refusal(std::string_view word,
                                            const MetricSubject& subject) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Metric> make(std::string_view word,
                                                     const MetricSubject& subject) const = 0;
};

// Returns the kind that a word names; null if there is none.
[[nodiscard]] const MetricKind* find_metric(std::string_view word);
// Returns the words of all kinds, for messages.
[[nodiscard]] std::vector<std::string_view> metric_names();
// Returns why the word cannot stand in [train] metrics, as a sentence's end; empty if it can.
[[nodiscard]] std::string metric_refusal(std::string_view word, const MetricSubject& subject);

// Returns why the metric that a word names has no value for some samples, as a sentence.
[[nodiscard]] std::string undefined_metric(std::string_view word);

[[nodiscard]] const MetricKind& accuracy_metric();
[[nodiscard]] const MetricKind& top_k_metric();
[[nodiscard]] const MetricKind& f1_metric();
[[nodiscard]] const MetricKind& auc_metric();
[[nodiscard]] const MetricKind& rmse_metric();
[[nodiscard]] const MetricKind& perplexity_metric();

}  // namespace troika
