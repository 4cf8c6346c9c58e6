#include <ATen/ATen.h>
#include <troika/comm/gather.h>
#include <troika/loss/class_rows.h>
#include <troika/train/metric_fold.h>

namespace troika {
namespace {

// Adds the sums of all metrics in one go.
std::vector<at::Tensor> sum_over(const Group& group, std::vector<at::Tensor> sums,
                                 const Call& call) {
  std::vector<at::Tensor> there;
  for (const at::Tensor& each : sums) {
    if (each.defined()) there.push_back(each);
  }
  if (there.empty()) return sums;
  const at::Tensor all = at::cat(there);
  group.all_reduce(all, ReduceOp::kSum, call).wait();
  std::int64_t begin = 0;
  for (at::Tensor& each : sums) {
    if (!each.defined()) continue;
    const std::int64_t size = each.numel();
    each = all.narrow(0, begin, size);
    begin += size;
  }
  return sums;
}

// Lays the rows of all ranks end to end, in the order of the ranks.
at::Tensor gather_rows(const Group& group, const at::Tensor& own, const Call& call) {
  if (!own.defined()) return {};
  const std::int64_t width = own.size(1);
  return gather_elements(group, own, call).elements.view({-1, width});
}

}  // namespace

MetricFold::MetricFold(const Recipe& recipe, const Dataset& data) : scales_(data.target_scales()) {
  const MetricSubject subject = metric_subject(recipe.model);
  const std::vector<std::string> names = data.target_names();
  takes_classes_ = subject.loss->target_meaning() == TargetMeaning::kClass;
  for (const std::string& word : recipe.train.metrics) {
    const MetricKind& kind = *find_metric(word);
    metrics_.push_back({word, kind.make(word, subject), {}});
    for (std::size_t i = 0; kind.has_unit() && names.size() > 1 && i < names.size(); ++i) {
      metrics_.push_back({word + "_" + names[i], kind.make(word, subject), i});
    }
    needs_outputs_ = needs_outputs_ || kind.needs_outputs(subject);
  }
}

void MetricFold::add(const at::Tensor& outputs, const at::Tensor& targets) {
  if (!needs_outputs_ || outputs.size(0) == 0) return;
  const ClassRows rows = takes_classes_
                             ? class_rows(outputs, targets)
                             : ClassRows{in_own_unit(as_rows(outputs), scales_),
                                         LossTargets(in_own_unit(as_rows(targets), scales_))};
  for (const Named& each : metrics_) {
    if (!each.value) {
      each.metric->add(rows.outputs, rows.targets.values);
    } else if (*each.value < rows.outputs.size(1)) {
      each.metric->add(rows.outputs.narrow(1, *each.value, 1),
                       rows.targets.values.narrow(1, *each.value, 1));
    }
  }
}

std::vector<NamedValue> MetricFold::values(const Group& group, double mean_loss,
                                           const Call& call) const {
  std::vector<at::Tensor> sums;
  for (const Named& each : metrics_) sums.push_back(each.metric->sums());
  sums = sum_over(group, std::move(sums), call);
  std::vector<NamedValue> values;
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    const at::Tensor rows = gather_rows(group, metrics_[i].metric->rows(), call);
    if (const auto value = metrics_[i].metric->value(sums[i], rows, mean_loss)) {
      values.push_back({metrics_[i].name, *value});
    }
  }
  return values;
}

}  // namespace troika
