// The keys of [data] with kind = "table".
#pragma once

#include <troika/config/key.h>
#include <troika/data/images/image_options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

enum class ColumnUse { kNumber, kCategory, kLabel, kTensor, kImage, kText, kWeight, kIgnore };
enum class Normalise { kNone, kStandard, kMinMax };
enum class Missing {
  kError,
  kMean,
  kMedian,
  kMostFrequent,
  kConstant,
  kOwnWord,
  kZero,
  kSkipRow,
  kIgnore
};
enum class Encode { kOneHot, kIndex, kHash };
// Says how the text of CSV files is read, and that of dates in any file.
enum class TextType { kAuto, kText, kInteger, kNumber, kTimestamp };
enum class TableFormat { kAuto, kCsv };

template <>
std::span<const std::string_view> names_of<ColumnUse>();
template <>
std::span<const std::string_view> names_of<Normalise>();
template <>
std::span<const std::string_view> names_of<Missing>();
template <>
std::span<const std::string_view> names_of<Encode>();
template <>
std::span<const std::string_view> names_of<TextType>();
template <>
std::span<const std::string_view> names_of<TableFormat>();

// Stands for the model's first input, or for its target where the column is a label.
inline constexpr const char* kAutoInto = "auto";

// Follows the name of a text's tensor in that of its mask.
inline constexpr const char* kMaskSuffix = ".mask";

// Stands for no column.
inline constexpr const char* kNoColumn = "none";

// Stands for a tab in files that are called *.tsv, for a semicolon beside decimal commas, and for a
// comma in others.
inline constexpr const char* kAutoDelimiter = "auto";

// Stands for text that is no date.
inline constexpr const char* kNoFormat = "none";

// Stands for the folder of the table's file.
inline constexpr const char* kAutoRoot = "auto";

// Stands for nothing behind the paths of images.
inline constexpr const char* kNoSuffix = "none";

// One table of [data.columns]. Its name is a column's, or a glob for columns not named otherwise.
// Its size is that of an image, or of the words of a category.
struct ColumnOptions : ImageOptions {
  std::string name;
  ColumnUse as = ColumnUse::kNumber;
  std::string into = kAutoInto;
  Normalise normalise = Normalise::kNone;
  Missing missing = Missing::kError;
  double fill = 0;
  Encode encode = Encode::kOneHot;
  TextType type = TextType::kAuto;
  std::string format = kNoFormat;
  std::string root = kAutoRoot;
  std::string suffix = kNoSuffix;
  std::int64_t length = 0;
  std::string tokenizer = "bytes";

  bool operator==(const ColumnOptions&) const = default;
};

enum class OnBadRow { kStop, kSkip };

template <>
std::span<const std::string_view> names_of<OnBadRow>();

// Holds the table [data.csv].
struct CsvOptions {
  bool header = true;
  std::vector<std::string> names;
  std::vector<std::string> missing_words;
  bool usual_missing_words = true;
  std::string decimal_point = ".";

  bool operator==(const CsvOptions&) const = default;
};

struct TableOptions {
  std::vector<std::string> files;
  std::vector<std::string> held_out_files;
  std::vector<std::string> test_files;
  std::vector<ColumnOptions> columns;
  std::vector<Condition> filter;
  std::vector<Condition> filter_any;
  double held_out_fraction = 0.1;
  double test_fraction = 0;
  std::string split_column = kNoColumn;
  OnBadRow on_bad_row = OnBadRow::kStop;
  TableFormat format = TableFormat::kAuto;
  std::string delimiter = kAutoDelimiter;
  CsvOptions csv;
  bool balance_classes = false;
  std::int64_t cache_mb = 128;
  bool evaluates_test = false;  // no key: the test side stands for the held-out one

  bool operator==(const TableOptions&) const = default;
};

[[nodiscard]] std::vector<Key> table_keys();

}  // namespace troika
