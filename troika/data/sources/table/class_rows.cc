#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/sampler.h>
#include <troika/data/sources/table/class_rows.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/data/sources/table/column_learner.h>

#include <algorithm>
#include <array>

namespace troika {
namespace {

const PlannedColumn& label_of(const TablePlan& plan) {
  const auto is_label = [](const PlannedColumn& each) {
    return each.options.as == ColumnUse::kLabel;
  };
  const auto labels = std::ranges::count_if(plan.columns, is_label);
  if (labels != 1) {
    throw DataError("data.balance_classes balances the classes of one label; there are " +
                        plural(labels, "column") + " of labels",
                    "leave it out, or name one column with as = \"label\"");
  }
  return *std::ranges::find_if(plan.columns, is_label);
}

}  // namespace

ClassRows::ClassRows(const TablePlan& plan, const TableFiles& files, const TableRows& rows) {
  const PlannedColumn& label = label_of(plan);
  tensor_ = label.tensor;
  const TensorSpec& target = plan.tensors[tensor_];
  const ColumnEncoder encoder(label, target);
  const std::array names = {label.column.name};
  std::vector<std::vector<std::int64_t>> counts(
      static_cast<std::size_t>(std::max<std::int64_t>(2, target.range)));
  for (std::size_t group = 0; group < files.groups().size(); ++group) {
    const std::vector<std::int64_t> slots = rows.slots(group, Split::kTrain);
    const at::Tensor classes = at::zeros({rows.counts(Split::kTrain)[group], 1}, at::kLong);
    files.read(group, names, [&](std::size_t, const Values& values) {
      encoder.encode(values, slots, classes, thrower_of_bad_values(files, group, names[0]));
    });
    const auto* const of_row = classes.const_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < classes.size(0); ++row) {
      std::vector<std::int64_t>& own = counts[static_cast<std::size_t>(of_row[row])];
      own.resize(files.groups().size());
      ++own[group];
    }
  }
  for (std::vector<std::int64_t>& each : counts) {
    index_of_.push_back(each.empty() ? -1 : std::ssize(counts_));
    if (!each.empty()) counts_.push_back(std::move(each));
  }
  if (std::ssize(counts_) <= Mixture::kBlock) return;
  throw DataError("data.balance_classes takes turns among at most " +
                  std::to_string(Mixture::kBlock) + " classes; there are " +
                  std::to_string(counts_.size()));
}

std::vector<std::vector<std::int32_t>> ClassRows::rows_of(const at::Tensor& targets) const {
  const at::Tensor classes = targets.to(at::kLong).contiguous();
  const auto* const of_row = classes.const_data_ptr<std::int64_t>();
  std::vector<std::vector<std::int32_t>> rows(counts_.size());
  for (std::int64_t row = 0; row < classes.numel(); ++row) {
    const std::int64_t index = index_of_.at(static_cast<std::size_t>(of_row[row]));
    rows.at(static_cast<std::size_t>(index)).push_back(static_cast<std::int32_t>(row));
  }
  return rows;
}

}  // namespace troika
