// The metrics that there are: a new one is a line here, and its file.
#include <troika/base/text.h>
#include <troika/loss/metric.h>

#include <algorithm>
#include <array>

namespace troika {

std::span<const MetricKind* const> MetricKind::all() {
  static const std::array kAll = {&accuracy_metric(), &top_k_metric(), &f1_metric(),
                                  &auc_metric(),      &rmse_metric(),  &perplexity_metric()};
  return kAll;
}

const MetricKind* find_metric(std::string_view word) {
  const auto kinds = MetricKind::all();
  const auto found =
      std::ranges::find_if(kinds, [&](const MetricKind* kind) { return kind->is_named(word); });
  return found == kinds.end() ? nullptr : *found;
}

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const MetricKind* kind : MetricKind::all()) names.push_back(kind->name());
  return names;
}

std::string undefined_metric(std::string_view word) {
  const MetricKind* kind = find_metric(word);
  std::string text(word);
  text += " has no value";
  if (kind != nullptr) text.append(": it needs ").append(kind->value_needs());
  return text;
}

std::string metric_refusal(std::string_view word, const MetricSubject& subject) {
  const MetricKind* kind = find_metric(word);
  if (kind == nullptr) {
    std::string text = "unknown metric " + quote(word);
    if (const auto likely = nearest(word, metric_names())) {
      return text + "; did you mean '" + *likely + "'?";
    }
    return text + "; there are " + join(metric_names(), ", ");
  }
  if (!subject.loss->takes_outputs()) {
    return quote(word) + " judges outputs as a loss takes them, and loss = \"" +
           std::string(subject.loss->name()) + "\" takes none";
  }
  if (!subject.gives_outputs && kind->needs_outputs(subject)) {
    return quote(word) + " judges a model's outputs, and kind = \"" + std::string(subject.model) +
           "\" never keeps them";
  }
  const std::string why = kind->refusal(word, subject);
  return why.empty() ? "" : quote(word) + " " + why;
}

}  // namespace troika
