// Internal: the files of a table as one list of row groups, read column by column. What reads them
// is a plug-in (data/arrow/plugin.h), loaded with the first file.
#pragma once

#include <troika/data/arrow/plugin.h>
#include <troika/data/find_files.h>
#include <troika/data/sources/table/time_part.h>
#include <troika/data/sources/table/time_text.h>
#include <troika/data/sources/table/written_value.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

using arrow_plugin::TextFormat;
using arrow_plugin::Values;
using arrow_plugin::ValueType;

struct TableColumn {
  std::string name;
  ValueType type = ValueType::kOther;
  std::string type_name;
  std::int64_t width = 1;
  bool is_partition = false;  // a folder's name says it: .../NAME=VALUE/...
  // The column that a part of a date or a time is taken from, and that column's type.
  std::string whole = {}, whole_type = {};
  TimePart part = TimePart::kYear;

  [[nodiscard]] bool is_part() const { return !whole.empty(); }
  bool operator==(const TableColumn&) const = default;
};

// Returns whether whole numbers are dates or times, whose unit is that of the type.
[[nodiscard]] bool is_temporal(const TableColumn& column);

// A row group of a file.
struct RowGroup {
  std::size_t file = 0;
  std::int64_t group = 0;      // in the file
  std::int64_t first_row = 0;  // over all files
  std::int64_t rows = 0;
};

// Const access is thread safe.
class TableFiles {
 public:
  // Reads what each file says of its columns and groups. Throws DataError naming a file that cannot
  // be read, or where none has a row or a column; UsageError where the plug-in is not there. A
  // column that holds words in one file is read as words from the text of others too. Text of the
  // columns of `times` becomes whole numbers.
  explicit TableFiles(std::vector<FoundFile> files, TextFormat format = {}, TimeColumns times = {});
  ~TableFiles();

  [[nodiscard]] std::span<const FoundFile> files() const { return files_; }
  // Returns the columns of the first file, then those that folders say, then the parts of dates and
  // times. Columns of whole numbers are of numbers where another file has numbers.
  [[nodiscard]] std::span<const TableColumn> columns() const { return columns_; }
  [[nodiscard]] std::span<const RowGroup> groups() const { return groups_; }
  [[nodiscard]] std::int64_t rows() const;
  // Returns the column of this name. Throws DataError naming the nearest where there is none.
  [[nodiscard]] const TableColumn& column(std::string_view name) const;
  // Returns a hint for a column that is missing: which there are.
  [[nodiscard]] std::string columns_hint() const;
  // Throws DataError unless each file has the column, with the type that columns() says.
  void check_everywhere(const std::string& name) const;

  // Receives consecutive values of a column, which is a number in `columns`.
  using Take = arrow_plugin::TakeValues;
  // Reads columns of a group. Throws DataError naming file and group.
  void read(std::size_t group, std::span<const std::string> columns, const Take& take) const;
  // Names a row for messages: "'data/a.parquet', row group 0, row 17".
  [[nodiscard]] std::string describe(std::size_t group, std::int64_t row) const;
  // Returns the digits that a file has in a row, where its column was read as numbers. Reads the
  // file again, for messages. Nothing where a double has all of them, and where there is no value.
  [[nodiscard]] std::optional<WrittenValue> written(std::size_t group, std::int64_t row,
                                                    const std::string& column) const;

 private:
  using File = arrow_plugin::File;
  using Columns = std::vector<TableColumn>;
  // A file that stays open, as opening it has read all of it.
  struct Converted {
    std::unique_ptr<File> file;
    std::mutex mutex;
  };
  struct Opened {
    std::size_t index;
    std::unique_ptr<File> file;
  };

  [[nodiscard]] std::string describe(const RowGroup& which, std::int64_t row) const;
  void add_file(std::size_t index, std::unique_ptr<File> file);
  // Reads text again whose columns look like numbers, and like words in other files.
  void read_again_as_words();
  [[nodiscard]] bool is_text_of_words(const std::string& column) const;
  void merge_columns();
  void add_parts();
  [[nodiscard]] Columns columns_of(const File& file) const;
  [[nodiscard]] std::unique_ptr<File> open(std::size_t file) const;
  // Acquires an opened file, and store_opened() releases it, so that a group does not open it
  // again.
  [[nodiscard]] std::unique_ptr<File> take_opened(std::size_t file) const;
  void store_opened(std::size_t file, std::unique_ptr<File> opened) const;
  void read_from(const File& file, const RowGroup& group, std::span<const std::string> columns,
                 const Take& take) const;
  // Passes values of a column as what its type says: numbers for the text of dates, and parts.
  void give(const RowGroup& group, const TableColumn& asked, const TableColumn& stored,
            const Values& values, std::size_t column, const Take& take) const;
  void check_readable(const RowGroup& group, const TableColumn& column, const Values& values,
                      const TimesOfTexts& times, const TimeText& text) const;
  // Throw DataError where a file is another one than at first.
  void check_unchanged(const File& file, const RowGroup& group) const;
  [[noreturn]] void fail_changed(const RowGroup& group) const;
  void give_partition(const RowGroup& group, std::size_t column, const TableColumn& which,
                      const Take& take) const;

  static constexpr std::size_t kMostOpened = 16;

  std::vector<FoundFile> files_;
  TextFormat format_;
  TimeColumns times_;
  Columns columns_;
  std::vector<Columns> schemas_;                                // each once
  std::vector<std::size_t> schema_of_;                          // of each file
  std::vector<std::map<std::string, std::string>> partitions_;  // of each file
  std::vector<RowGroup> groups_;
  mutable std::map<std::size_t, Converted> converted_;
  mutable std::mutex mutex_;
  mutable std::vector<Opened> opened_;  // the latest last
};

// Finds the files of a table, also in object stores. A folder stands for all files below it. Files
// and folders whose names begin with '_' are left out where a wildcard has found them, as Spark has
// it. Throws DataError as find_files() does.
[[nodiscard]] std::vector<FoundFile> find_table_files(std::span<const std::string> patterns);

// Returns a text that tells files apart, by whatever path they are reached.
[[nodiscard]] std::string identity_of(const FoundFile& file);

struct TableSearch {
  std::vector<FoundFile> files;
  std::vector<std::string> left_out;  // what folders and globs have found and is no table
};
// Finds the same, without files that neither their first bytes nor their names call a table. A file
// that is named without wildcards stays. Throws DataError where no other is left.
[[nodiscard]] TableSearch search_tables(std::span<const std::string> patterns,
                                        const TextFormat& format);

}  // namespace troika
