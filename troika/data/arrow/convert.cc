#include <arrow/util/decimal.h>
#include <arrow/util/float16.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/plain_array.h>

#include <limits>
#include <memory>
#include <utility>

namespace troika::arrow_plugin {
namespace {

bool is_number(const arrow::DataType& type) {
  const ValueType value = value_type_of(type);
  return value == ValueType::kInteger || value == ValueType::kNumber;
}

// Whether the elements of lists are numbers, truth values, or such lists.
bool is_element(const arrow::DataType& type) {
  const ValueType value = value_type_of(type);
  return is_number(type) || value == ValueType::kBoolean || value == ValueType::kNumbers;
}

// Returns the place of the path in a struct; -1 where it has none.
int path_of_struct(const arrow::DataType& type) {
  const int place = static_cast<const arrow::StructType&>(type).GetFieldIndex("path");
  return place >= 0 && value_type_of(*type.field(place)->type()) == ValueType::kText ? place : -1;
}

// Data sets of Hugging Face store an image as {bytes, path}, of which one may be missing. Returns
// the place of the bytes; -1 in other structs.
int bytes_of_struct(const arrow::DataType& type) {
  const int place = static_cast<const arrow::StructType&>(type).GetFieldIndex("bytes");
  if (place < 0) return -1;
  const arrow::Type::type stored = type.field(place)->type()->id();
  if (stored == arrow::Type::NA && path_of_struct(type) >= 0) return place;
  return stored == arrow::Type::BINARY || stored == arrow::Type::LARGE_BINARY ? place : -1;
}

// The elements of a list's rows, and where each row begins among them.
struct Elements {
  std::shared_ptr<arrow::Array> values;
  std::vector<std::int64_t> offsets;
};

template <class List>
Elements elements_of(const arrow::Array& array) {
  const auto& list = static_cast<const List&>(array);
  Elements elements;
  const std::int64_t first = list.value_offset(0);
  for (std::int64_t row = 0; row <= list.length(); ++row) {
    elements.offsets.push_back(list.value_offset(row) - first);
  }
  elements.values = list.values()->Slice(first, elements.offsets.back());
  return elements;
}

// The lists of a view lie anywhere, in any order.
template <class View>
arrow::Result<Elements> elements_of_view(const arrow::Array& array) {
  const auto& list = static_cast<const View&>(array);
  Elements elements{nullptr, {0}};
  for (std::int64_t row = 0; row < list.length(); ++row) {
    const std::int64_t size = list.IsValid(row) ? list.value_length(row) : 0;
    elements.offsets.push_back(elements.offsets.back() + size);
  }
  ARROW_ASSIGN_OR_RAISE(elements.values, list.Flatten());
  return elements;
}

arrow::Result<Elements> elements_of_any(const arrow::Array& array) {
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return elements_of<arrow::ListArray>(array);
    case arrow::Type::LARGE_LIST:
      return elements_of<arrow::LargeListArray>(array);
    case arrow::Type::LIST_VIEW:
      return elements_of_view<arrow::ListViewArray>(array);
    case arrow::Type::LARGE_LIST_VIEW:
      return elements_of_view<arrow::LargeListViewArray>(array);
    default:
      return elements_of<arrow::FixedSizeListArray>(array);
  }
}

// Turns offsets of lists of lists into those of their numbers. The inner lists have one length.
arrow::Status flatten(const arrow::Array& array, const Values& inner,
                      std::vector<std::int64_t>& offsets) {
  std::int64_t length = -1;
  for (std::int64_t row = 0; row < array.length(); ++row) {
    if (array.IsNull(row)) continue;
    const auto begin = static_cast<std::size_t>(offsets[static_cast<std::size_t>(row)]);
    const auto end = static_cast<std::size_t>(offsets[static_cast<std::size_t>(row) + 1]);
    for (std::size_t i = begin; i < end; ++i) {
      if (!inner.there.empty() && inner.there[i] == 0) {
        return arrow::Status::Invalid("a list inside of lists has no value; expected numbers");
      }
      const std::int64_t own = inner.offsets[i + 1] - inner.offsets[i];
      if (length < 0) length = own;
      if (own == length) continue;
      return arrow::Status::Invalid("the lists inside of lists have ", length, " and ", own,
                                    " numbers; expected one shape");
    }
  }
  for (std::int64_t& each : offsets) each = inner.offsets[static_cast<std::size_t>(each)];
  return arrow::Status::OK();
}

// Writes the value of each row; 0 where there is none.
template <class T>
void look_up(const arrow::DictionaryArray& array, std::span<const T> all, std::vector<T>& out) {
  out.assign(static_cast<std::size_t>(array.length()), T{0});
  for (std::int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) continue;
    out[static_cast<std::size_t>(i)] = all[static_cast<std::size_t>(array.GetValueIndex(i))];
  }
}

}  // namespace

ValueType value_type_of(const arrow::DataType& type) {
  using Type = arrow::Type;
  if (is_wrapped(type)) {
    const arrow::DataType* plain = plain_type(type);
    return plain == nullptr ? ValueType::kOther : value_type_of(*plain);
  }
  switch (type.id()) {
    case Type::NA:
      return ValueType::kNothing;
    case Type::BOOL:
      return ValueType::kBoolean;
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::INT64:
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIME32:
    case Type::TIME64:
    case Type::TIMESTAMP:
    case Type::DURATION:
      return ValueType::kInteger;
    case Type::UINT64:
    case Type::HALF_FLOAT:
    case Type::FLOAT:
    case Type::DOUBLE:
    case Type::DECIMAL32:
    case Type::DECIMAL64:
    case Type::DECIMAL128:
    case Type::DECIMAL256:
      return ValueType::kNumber;
    case Type::STRING:
    case Type::LARGE_STRING:
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::FIXED_SIZE_BINARY:
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return ValueType::kText;
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::FIXED_SIZE_LIST:
      return is_element(*type.field(0)->type()) ? ValueType::kNumbers : ValueType::kOther;
    case Type::STRUCT:
      return bytes_of_struct(type) >= 0 ? ValueType::kText : ValueType::kOther;
    case Type::DICTIONARY: {
      const auto& values = *static_cast<const arrow::DictionaryType&>(type).value_type();
      const ValueType value = value_type_of(values);
      return value == ValueType::kText || is_number(values) ? value : ValueType::kOther;
    }
    default:
      return ValueType::kOther;
  }
}

std::int64_t width_of(const arrow::DataType& type) {
  if (is_wrapped(type)) {
    const arrow::DataType* plain = plain_type(type);
    return plain == nullptr ? 1 : width_of(*plain);
  }
  if (type.id() == arrow::Type::FIXED_SIZE_LIST) {
    const auto& list = static_cast<const arrow::FixedSizeListType&>(type);
    return list.list_size() * width_of(*list.value_type());
  }
  return value_type_of(type) == ValueType::kNumbers ? 0 : 1;
}

arrow::Result<Values> Converter::convert(const arrow::Array& array) {
  if (is_wrapped(*array.type())) {
    ARROW_ASSIGN_OR_RAISE(const auto plain, plain_array(array));
    return convert(*plain);
  }
  if (array.type_id() == arrow::Type::STRUCT && bytes_of_struct(*array.type()) >= 0) {
    const auto& fields = static_cast<const arrow::StructArray&>(array);
    ARROW_ASSIGN_OR_RAISE(const auto bytes,
                          fields.GetFlattenedField(bytes_of_struct(*array.type())));
    ARROW_RETURN_NOT_OK(convert(*bytes));
    const int path = path_of_struct(*array.type());
    if (path < 0 || values_.there.empty()) return values_;
    ARROW_ASSIGN_OR_RAISE(const auto paths, fields.GetFlattenedField(path));
    ARROW_RETURN_NOT_OK(add_paths(*paths));
    return values_;
  }
  values_ = {};
  values_.type = value_type_of(*array.type());
  values_.rows = array.length();
  ARROW_RETURN_NOT_OK(fill(array));
  if (array.null_count() > 0) {
    there_.resize(static_cast<std::size_t>(array.length()));
    for (std::int64_t i = 0; i < array.length(); ++i) {
      there_[static_cast<std::size_t>(i)] = array.IsValid(i) ? 1 : 0;
    }
    values_.there = there_;
  }
  return values_;
}

arrow::Status Converter::fill(const arrow::Array& array) {
  using Type = arrow::Type;
  switch (array.type_id()) {
    case Type::NA:
      return arrow::Status::OK();
    case Type::STRING:
    case Type::BINARY:
      return fill_text<arrow::BinaryArray>(array), arrow::Status::OK();
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return fill_text<arrow::LargeBinaryArray>(array), arrow::Status::OK();
    case Type::FIXED_SIZE_BINARY:
      return fill_text<arrow::FixedSizeBinaryArray>(array), arrow::Status::OK();
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return fill_text<arrow::BinaryViewArray>(array), arrow::Status::OK();
    case Type::DICTIONARY:
      return fill_dictionary(static_cast<const arrow::DictionaryArray&>(array));
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::FIXED_SIZE_LIST:
      return fill_list(array);
    default:
      return fill_plain(array);
  }
}

// Whole numbers, dates, times, and numbers.
arrow::Status Converter::fill_plain(const arrow::Array& array) {
  using Type = arrow::Type;
  switch (array.type_id()) {
    case Type::BOOL:
      return fill_integers<arrow::BooleanArray>(array), arrow::Status::OK();
    case Type::INT8:
      return fill_integers<arrow::Int8Array>(array), arrow::Status::OK();
    case Type::INT16:
      return fill_integers<arrow::Int16Array>(array), arrow::Status::OK();
    case Type::INT32:
      return fill_integers<arrow::Int32Array>(array), arrow::Status::OK();
    case Type::INT64:
      return fill_integers<arrow::Int64Array>(array), arrow::Status::OK();
    case Type::UINT8:
      return fill_integers<arrow::UInt8Array>(array), arrow::Status::OK();
    case Type::UINT16:
      return fill_integers<arrow::UInt16Array>(array), arrow::Status::OK();
    case Type::UINT32:
      return fill_integers<arrow::UInt32Array>(array), arrow::Status::OK();
    case Type::DATE32:
      return fill_integers<arrow::Date32Array>(array), arrow::Status::OK();
    case Type::DATE64:
      return fill_integers<arrow::Date64Array>(array), arrow::Status::OK();
    case Type::TIME32:
      return fill_integers<arrow::Time32Array>(array), arrow::Status::OK();
    case Type::TIME64:
      return fill_integers<arrow::Time64Array>(array), arrow::Status::OK();
    case Type::TIMESTAMP:
      return fill_integers<arrow::TimestampArray>(array), arrow::Status::OK();
    case Type::DURATION:
      return fill_integers<arrow::DurationArray>(array), arrow::Status::OK();
    case Type::UINT64:
      return fill_numbers<arrow::UInt64Array>(array), arrow::Status::OK();
    case Type::HALF_FLOAT:
      return fill_numbers<arrow::HalfFloatArray>(array), arrow::Status::OK();
    case Type::FLOAT:
      return fill_numbers<arrow::FloatArray>(array), arrow::Status::OK();
    case Type::DOUBLE:
      return fill_numbers<arrow::DoubleArray>(array), arrow::Status::OK();
    case Type::DECIMAL32:
      return fill_decimals<arrow::Decimal32Array, arrow::Decimal32>(array);
    case Type::DECIMAL64:
      return fill_decimals<arrow::Decimal64Array, arrow::Decimal64>(array);
    case Type::DECIMAL128:
      return fill_decimals<arrow::Decimal128Array, arrow::Decimal128>(array);
    case Type::DECIMAL256:
      return fill_decimals<arrow::Decimal256Array, arrow::Decimal256>(array);
    default:
      return arrow::Status::TypeError("a column of type ", array.type()->ToString(),
                                      " cannot be read");
  }
}

template <class Array>
void Converter::fill_integers(const arrow::Array& array) {
  const auto& typed = static_cast<const Array&>(array);
  integers_.resize(static_cast<std::size_t>(array.length()));
  for (std::int64_t i = 0; i < array.length(); ++i) {
    // The sign of one that has eight bits is kept.
    integers_[static_cast<std::size_t>(i)] =
        static_cast<std::int64_t>(typed.Value(i));  // NOLINT(bugprone-signed-char-misuse)
  }
  values_.integers = integers_;
}

template <class Array>
void Converter::fill_numbers(const arrow::Array& array) {
  const auto& typed = static_cast<const Array&>(array);
  numbers_.resize(static_cast<std::size_t>(array.length()));
  for (std::int64_t i = 0; i < array.length(); ++i) {
    if constexpr (std::is_same_v<Array, arrow::HalfFloatArray>) {
      numbers_[static_cast<std::size_t>(i)] =
          arrow::util::Float16::FromBits(typed.Value(i)).ToDouble();
    } else {
      numbers_[static_cast<std::size_t>(i)] = static_cast<double>(typed.Value(i));
    }
  }
  values_.numbers = numbers_;
}

template <class Array>
void Converter::fill_text(const arrow::Array& array) {
  const auto& typed = static_cast<const Array&>(array);
  text_.clear();
  offsets_.assign(1, 0);
  for (std::int64_t i = 0; i < array.length(); ++i) {
    if (typed.IsValid(i)) text_ += typed.GetView(i);
    offsets_.push_back(static_cast<std::int64_t>(text_.size()));
  }
  values_.offsets = offsets_;
  values_.text = text_;
}

arrow::Status Converter::add_paths(const arrow::Array& array) {
  Converter converter;
  ARROW_ASSIGN_OR_RAISE(const Values paths, converter.convert(array));
  const auto part_of = [](const Values& values, std::size_t i) {
    const auto begin = static_cast<std::size_t>(values.offsets[i]);
    return values.text.substr(begin, static_cast<std::size_t>(values.offsets[i + 1]) - begin);
  };
  std::string text;
  std::vector<std::int64_t> offsets = {0};
  paths_.assign(there_.size(), 0);
  for (std::size_t i = 0; i < there_.size(); ++i) {
    if (there_[i] == 0 && (paths.there.empty() || paths.there[i] != 0)) {
      there_[i] = paths_[i] = 1;
      text += part_of(paths, i);
    } else if (there_[i] != 0) {
      text += part_of(values_, i);
    }
    offsets.push_back(static_cast<std::int64_t>(text.size()));
  }
  text_ = std::move(text);
  offsets_ = std::move(offsets);
  values_.type = ValueType::kText;
  values_.text = text_;
  values_.offsets = offsets_;
  values_.there = there_;
  values_.paths = paths_;
  return arrow::Status::OK();
}

template <class Array, class Decimal>
arrow::Status Converter::fill_decimals(const arrow::Array& array) {
  const std::int32_t scale = static_cast<const arrow::DecimalType&>(*array.type()).scale();
  numbers_.assign(static_cast<std::size_t>(array.length()), 0);
  for (std::int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) continue;
    const auto index = static_cast<std::size_t>(i);
    numbers_[index] = Decimal(static_cast<const Array&>(array).GetValue(i)).ToDouble(scale);
  }
  values_.numbers = numbers_;
  return arrow::Status::OK();
}

arrow::Status Converter::fill_dictionary(const arrow::DictionaryArray& array) {
  Converter dictionary;
  ARROW_ASSIGN_OR_RAISE(const Values all, dictionary.convert(*array.dictionary()));
  if (!all.there.empty()) return arrow::Status::Invalid("a dictionary has a missing value");
  switch (all.type) {
    case ValueType::kText:
      fill_words(array, all);
      return arrow::Status::OK();
    case ValueType::kInteger:
      look_up(array, all.integers, integers_);
      values_.integers = integers_;
      return arrow::Status::OK();
    case ValueType::kNumber:
      look_up(array, all.numbers, numbers_);
      values_.numbers = numbers_;
      return arrow::Status::OK();
    default:
      return arrow::Status::TypeError("a dictionary of ", array.dictionary()->type()->ToString(),
                                      " cannot be read");
  }
}

void Converter::fill_words(const arrow::DictionaryArray& array, const Values& all) {
  text_.clear();
  offsets_.assign(1, 0);
  for (std::int64_t i = 0; i < array.length(); ++i) {
    if (array.IsValid(i)) {
      const auto word = static_cast<std::size_t>(array.GetValueIndex(i));
      text_ += all.text.substr(static_cast<std::size_t>(all.offsets[word]),
                               static_cast<std::size_t>(all.offsets[word + 1] - all.offsets[word]));
    }
    offsets_.push_back(static_cast<std::int64_t>(text_.size()));
  }
  values_.offsets = offsets_;
  values_.text = text_;
}

arrow::Status Converter::fill_list(const arrow::Array& array) {
  ARROW_ASSIGN_OR_RAISE(Elements elements, elements_of_any(array));
  Converter converter;
  ARROW_ASSIGN_OR_RAISE(const Values inner, converter.convert(*elements.values));
  numbers_.assign(inner.numbers.begin(), inner.numbers.end());
  for (const std::int64_t each : inner.integers) numbers_.push_back(static_cast<double>(each));
  const bool is_nested = inner.type == ValueType::kNumbers;
  if (is_nested) ARROW_RETURN_NOT_OK(flatten(array, inner, elements.offsets));
  for (std::size_t i = 0; !is_nested && i < inner.there.size(); ++i) {
    if (inner.there[i] == 0) numbers_[i] = std::numeric_limits<double>::quiet_NaN();
  }
  offsets_ = std::move(elements.offsets);
  values_.offsets = offsets_;
  values_.numbers = numbers_;
  return arrow::Status::OK();
}

}  // namespace troika::arrow_plugin
