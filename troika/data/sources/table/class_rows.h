// Internal: lists the rows of each class of a table, so that classes can come equally often.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/data/sources/table/column_plan.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/data/sources/table/table_rows.h>

#include <cstdint>
#include <vector>

namespace troika {

// The classes that occur on the training side. Const access is thread safe.
class ClassRows {
 public:
  // Reads the label of every row. Throws DataError where labels are not one column, or a label is
  // no class, naming its row.
  ClassRows(const TablePlan& plan, const TableFiles& files, const TableRows& rows);

  // Returns the number of rows of each class in each group. Classes stand in ascending order, those
  // without a row left out.
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& counts() const { return counts_; }
  // Returns for each class the rows of a group, by their targets [rows, 1].
  [[nodiscard]] std::vector<std::vector<std::int32_t>> rows_of(const at::Tensor& targets) const;
  // Returns which of the model's tensors has the targets.
  [[nodiscard]] std::size_t tensor() const { return tensor_; }

 private:
  std::size_t tensor_ = 0;
  std::vector<std::vector<std::int64_t>> counts_;
  std::vector<std::int64_t> index_of_;  // of each class among those that occur; -1 for others
};

}  // namespace troika
