// Internal: columns of a table that predictions carry along.
#pragma once

#include <troika/data/kept_columns.h>
#include <troika/data/sources/table/table_files.h>

namespace troika {

// Reads one row group at a time. Not thread safe.
class KeptTableColumns final : public KeptColumns {
 public:
  // Keeps a reference to `files`. Throws DataError naming a column that is not there, or whose
  // values are lists or more.
  KeptTableColumns(const TableFiles& files, std::span<const std::string> names);

  [[nodiscard]] std::span<const KeptColumn> columns() const override { return columns_; }
  [[nodiscard]] std::vector<KeptValues> values(const at::Tensor& sample_ids) override;

 private:
  void read(std::size_t group);
  void add(std::size_t group, const KeptColumn& column, const arrow_plugin::Values& values,
           KeptValues& to) const;

  const TableFiles& files_;
  std::vector<KeptColumn> columns_;
  std::vector<std::string> names_;
  std::size_t group_;               // that was read last; that behind the last: none
  std::vector<KeptValues> values_;  // its
};

}  // namespace troika
