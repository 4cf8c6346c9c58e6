// Internal: what troika takes of Apache Arrow, which is a plug-in: its libraries are 60 MB that
// only tables need, and their headers do not go together with LibTorch's. No type of Arrow's
// passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::arrow_plugin {

// Receive results in calls, as the two sides may have different allocators. What they are given
// lasts until they return.
using TakeText = std::function<void(std::string_view)>;

// The types of values that troika tells apart.
enum class ValueType {
  kInteger,  // any whole number, date or time; kept exactly
  kNumber,
  kBoolean,  // integers 0 and 1
  kText,     // text or bytes, also those of a struct with a field "bytes"
  kNumbers,  // a list of numbers a row
  kNothing,  // no row has a value
  kOther     // cannot be read
};

struct Column {
  std::string_view name;
  ValueType type = ValueType::kOther;
  std::string_view type_name;  // Arrow's: "int64", "list<element: float>"
  std::int64_t width = 1;      // of a list of fixed size; 0: rows differ
  bool nullable = false;       // of a file to write: rows may have no value
};

// Consecutive values of one column.
struct Values {
  ValueType type = ValueType::kOther;
  std::int64_t first_row = 0;  // in the group
  std::int64_t rows = 0;
  std::span<const std::uint8_t> there;     // 1 a row that has a value; empty: all have
  std::span<const std::int64_t> integers;  // kInteger, kBoolean: one a row
  // kNumber: one a row. kNumbers: those of all rows, NaN for an element without a value.
  std::span<const double> numbers;
  // kText: row i is text[offsets[i], offsets[i + 1]). kNumbers: the same of `numbers`.
  std::span<const std::int64_t> offsets;
  std::string_view text;
  std::span<const std::uint8_t> paths;  // of a struct without bytes: 1 where the text is its path
};
using TakeValues = std::function<void(std::size_t column, const Values& values)>;

// Forces the type that a column of text has, whatever its values look like.
struct ForcedType {
  std::string column;                    // a name, or a glob for columns not named otherwise
  ValueType type = ValueType::kNothing;  // kText, kInteger or kNumber; kNothing: as values look
};

// Says how the text of a table is written.
struct TextFormat {
  char delimiter = 0;      // 0: a tab in *.tsv, a semicolon beside decimal commas, else a comma
  bool any_name = false;   // files are text whatever they are called
  bool has_header = true;  // in the first row
  std::vector<std::string> names = {};          // replace those of the header; without both: c0, c1
  std::vector<std::string> missing_words = {};  // stand for no value
  bool usual_missing_words = true;              // so do "NA", "null" and others
  char decimal_point = '.';
  std::vector<ForcedType> types = {};
  // Columns of whole numbers that a double may not hold, in files of any format: they are read as
  // the text of their digits, for messages.
  std::vector<std::string> as_digits = {};
};

// A file of rows, cut into groups that are decoded one at a time. A function that returns false has
// passed the reason to `error`. Not thread safe.
class File {
 public:
  virtual ~File() = default;
  [[nodiscard]] virtual std::int64_t columns() const = 0;
  [[nodiscard]] virtual Column column(std::int64_t index) const = 0;
  [[nodiscard]] virtual std::int64_t groups() const = 0;
  [[nodiscard]] virtual std::int64_t rows(std::int64_t group) const = 0;
  // Returns whether opening the file has read all of it, so that it had better stay open.
  [[nodiscard]] virtual bool is_converted() const { return false; }
  // Reads these columns of a group. Calls `take` for each of them, several times over ascending
  // rows; `column` counts in `columns`.
  [[nodiscard]] virtual bool read(std::int64_t group, std::span<const std::int64_t> columns,
                                  const TakeValues& take, const TakeText& error) const = 0;
};

// Receives the bytes of a file in order. Returns false where they cannot be written.
using TakeBytes = std::function<bool(std::span<const std::byte>)>;

// A Parquet file that is written. A function that returns false has passed the reason to `error`.
// Not thread safe.
class Writer {
 public:
  virtual ~Writer() = default;
  // Appends rows: the values of each column, of the type that was announced, none missing.
  [[nodiscard]] virtual bool write(std::span<const Values> columns, const TakeText& error) = 0;
  // Completes the file.
  [[nodiscard]] virtual bool close(const TakeText& error) = 0;
};

// The threads of Arrow's two pools.
struct Threads {
  int decoding = 1;
  int reading = 1;  // they wait for disks and stores

  bool operator==(const Threads&) const = default;
};

// The bytes of a text file, from its beginning. Not thread safe.
class TextStream {
 public:
  virtual ~TextStream() = default;
  // Passes the next bytes, at most `most`; none at the end. Returns false where `error` has been
  // given the reason.
  [[nodiscard]] virtual bool read(std::int64_t most, const TakeText& take,
                                  const TakeText& error) = 0;
};

class ArrowPlugin {
 public:
  virtual ~ArrowPlugin() = default;
  // Sets the most threads that the pools of this process may have. Returns false where `error` has
  // been given the reason.
  [[nodiscard]] virtual bool set_threads(Threads threads, const TakeText& error) const = 0;
  [[nodiscard]] virtual Threads threads() const = 0;
  // Returns whether a file is a table by its first bytes or its name; also where it cannot be read.
  [[nodiscard]] virtual bool is_table(const std::string& path, const TextFormat& format) const = 0;
  // Opens a file by its path or URI; returns null where `error` has been given the reason.
  [[nodiscard]] virtual std::unique_ptr<File> open(const std::string& path,
                                                   const TextFormat& format,
                                                   const TakeText& error) const = 0;
  // Opens a file of text, which may be compressed with gzip or zstd; returns null likewise.
  [[nodiscard]] virtual std::unique_ptr<TextStream> open_text(const std::string& path,
                                                              const TakeText& error) const = 0;
  // Begins a Parquet file of kInteger, kNumber and kText columns, whose bytes go to `take`. Returns
  // null where `error` has been given the reason.
  [[nodiscard]] virtual std::unique_ptr<Writer> create(std::span<const Column> columns,
                                                       TakeBytes take,
                                                       const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_arrow.so";
using PluginEntry = const ArrowPlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_arrow_plugin";

}  // namespace troika::arrow_plugin
