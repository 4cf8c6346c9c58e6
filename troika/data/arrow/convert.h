// Internal: Arrow's arrays as plain values.
#pragma once

#include <arrow/api.h>
#include <troika/data/arrow/plugin.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika::arrow_plugin {

// Returns which of our types holds the values of an Arrow type.
[[nodiscard]] ValueType value_type_of(const arrow::DataType& type);
// Returns the length of lists of a fixed size, 0 of other lists, else 1.
[[nodiscard]] std::int64_t width_of(const arrow::DataType& type);

// Converts arrays one after the other, in memory that it uses again.
class Converter {
 public:
  // Returns the values of an array, which last until the next call. Returns an error where the type
  // is kOther.
  [[nodiscard]] arrow::Result<Values> convert(const arrow::Array& array);

 private:
  arrow::Status fill(const arrow::Array& array);
  arrow::Status fill_plain(const arrow::Array& array);
  arrow::Status fill_list(const arrow::Array& array);
  arrow::Status fill_dictionary(const arrow::DictionaryArray& array);
  void fill_words(const arrow::DictionaryArray& array, const Values& all);
  template <class Array>
  void fill_integers(const arrow::Array& array);
  template <class Array>
  void fill_numbers(const arrow::Array& array);
  template <class Array>
  void fill_text(const arrow::Array& array);
  template <class Array, class Decimal>
  arrow::Status fill_decimals(const arrow::Array& array);
  // Gives rows without bytes their paths.
  arrow::Status add_paths(const arrow::Array& array);

  Values values_;
  std::vector<std::uint8_t> there_;
  std::vector<std::uint8_t> paths_;
  std::vector<std::int64_t> integers_;
  std::vector<double> numbers_;
  std::vector<std::int64_t> offsets_;
  std::string text_;
};

}  // namespace troika::arrow_plugin
