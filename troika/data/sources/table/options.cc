#include <troika/config/component.h>
#include <troika/data/sources/table/options.h>

#include <array>
#include <limits>

namespace troika {

template <>
std::span<const std::string_view> names_of<ColumnUse>() {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"number", "category", "label", "tensor", "image", "text", "weight", "ignore"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<Normalise>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"none", "standard", "min_max"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<Missing>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"error", "mean", "median", "most_frequent", "constant",
                                       "own_word", "zero", "skip_row", "ignore"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<Encode>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"one_hot", "index", "hash"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<TextType>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"auto", "text", "integer", "number", "timestamp"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<TableFormat>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"auto", "csv"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<OnBadRow>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"stop", "skip"});
  return kNames;
}

namespace {

constexpr NumberRange kAnyNumber{.min = -std::numeric_limits<double>::infinity()};

// clang-format off
std::vector<Key> column_keys() {
  using O = ColumnOptions;
  using K = KeysOf<O>;
  std::vector<Key> keys = {
      K::choice<&O::as>("as", "what the column is").required(),
      K::text<&O::into>("into", "the model's tensor that it is a part of; auto: the first input, or the target for a label"),
      K::choice<&O::normalise>("normalise", "of numbers, and of labels that are: mean 0 and deviation 1, or into [0, 1], over the training side"),
      K::choice<&O::missing>("missing", "where a row has no value; ignore, of targets: it does not count in the loss"),
      K::number<&O::fill>("fill", kAnyNumber, "of numbers with missing = \"constant\": the number that stands for no value, before it is normalised"),
      K::choice<&O::encode>("encode", "of categories; hash also of text, whose words then need no tokenizer"),
      K::integer<&O::size>("size", {0, 10'000'000}, "of categories: buckets of hash, most words of the others; 0: as many as there are. Of text with hash: the number of ids. Of images: height and width; 0: what the model takes, or those of the first"),
      K::choice<&O::type>("type", "of columns of CSV: how their text is read; auto: as all of its values look. \"text\" keeps leading zeros and long ids. \"timestamp\", of text in any file: dates and times as 2024-01-05 12:30:00"),
      K::text<&O::format>("format", "of text that is dates or times: how they are written, as \"%d.%m.%Y\" in the letters of strptime, or \"iso\"; none: it is no date, unless `type` says so"),
      K::integer<&O::length>("length", {0, 10'000'000}, "of text: token ids a row, cut, or filled up with 0 or the tokenizer's padding; 0: as many as the tensor has"),
      K::text<&O::tokenizer>("tokenizer", "of text: \"bytes\", or the path of a SentencePiece model or a tokenizer.json"),
      K::text<&O::root>("root", "of images given as paths: the folder where these start; auto: that of the table's file"),
      K::text<&O::suffix>("suffix", "of images given as paths: what follows each, as \".jpg\"; none: nothing"),
  };
  for (const Key& key : image_keys<O>()) keys.push_back(key);
  return keys;
}

std::vector<Key> csv_keys() {
  using O = CsvOptions;
  using K = KeysOf<O>;
  return {
      K::boolean<&O::header>("header", "whether the first row has the names of the columns"),
      K::texts<&O::names>("names", "names of the columns, instead of the header's; []: those of the header, else c0, c1 and so on"),
      K::texts<&O::missing_words>("missing_words", "words that stand for no value, beside the usual ones"),
      K::boolean<&O::usual_missing_words>("usual_missing_words", "whether NA, null, NaN and words like them stand for no value"),
      K::text<&O::decimal_point>("decimal_point", "one character"),
  };
}

// The keys of a table that is always there.
const Component& csv_component() {
  class Csv final : public Declared<Component, CsvOptions> {
   public:
    Csv() : Declared("csv", csv_keys()) {}
  };
  static const Csv kCsv;
  return kCsv;
}

Key csv_key() {
  using O = TableOptions;
  return {"csv",
          OptionsSpec{[](void*, const Origins&) {},
                      [](const void*) { return &csv_component(); },
                      [](void* options) -> void* { return &static_cast<O*>(options)->csv; },
                      [](const void* options) -> const void* { return &static_cast<const O*>(options)->csv; }},
          "how CSV files are written: header, names, missing_words, usual_missing_words, decimal_point"};
}

}  // namespace

std::vector<Key> table_keys() {
  using O = TableOptions;
  using K = KeysOf<O>;
  return {
      K::texts<&O::files>("files", "Parquet, CSV and JSON Lines (also gzip, zstd) and Arrow IPC: paths, folders and globs, `**` descends; relative to the current folder"),
      K::texts<&O::held_out_files>("held_out_files", "files of the held-out side; []: it is a part of `files`"),
      K::texts<&O::test_files>("test_files", "files that no run trains or evaluates on; `--side test` of `troika evaluate` and `predict` takes them"),
      K::named_tables<&O::columns>("columns", column_keys, "NAME = { as = \"number\" }: columns of the files, or globs"),
      K::number<&O::held_out_fraction>("held_out_fraction", ranges::kBelowOne, "rows kept for evaluation, chosen by hash, where nothing else chooses them"),
      K::number<&O::test_fraction>("test_fraction", ranges::kBelowOne, "rows kept for `--side test`, chosen by hash"),
      K::text<&O::split_column>("split_column", "a column that says the side of a row: \"train\" or 0 and false, \"validation\", \"test\" or 1 and true, in capitals or not; other words leave it out"),
      K::conditions<&O::filter>("filter", "rows that are used: all of [COLUMN, RELATION, VALUE], with =, !=, <, <=, >, >=, in, not in, is, is not"),
      K::conditions<&O::filter_any>("filter_any", "conditions as those of filter, of which a row meets at least one; []: none are asked"),
      K::choice<&O::on_bad_row>("on_bad_row", "where a row has a value that cannot be used"),
      K::choice<&O::format>("format", "auto: as the first bytes of a file say, and text as its name says; csv: text with any name"),
      K::text<&O::delimiter>("delimiter", "what separates the values of text, one character; auto: a tab in *.tsv, a semicolon beside decimal commas, else a comma"),
      csv_key(),
      K::boolean<&O::balance_classes>("balance_classes", "train on each class equally often, however many rows it has"),
      K::integer<&O::cache_mb>("cache_mb", {1, 1'000'000}, "row groups that a rank keeps decoded; rows are shuffled among as many as half of it holds"),
  };
}
// clang-format on

}  // namespace troika
