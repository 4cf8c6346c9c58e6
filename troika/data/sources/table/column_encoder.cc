#include <ATen/ATen.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/config/toml_text.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/nn/microbatch.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika {
namespace {

// Writes ones, then zeros, from `begin` on.
template <class T>
void mark(const at::Tensor& mask, std::int64_t begin, std::int64_t ones, std::int64_t width) {
  T* const places = mask.mutable_data_ptr<T>() + begin;
  std::fill_n(places, ones, T{1});
  std::fill_n(places + ones, width - ones, T{0});
}

// What a loss leaves out.
template <class T>
T ignored_target() {
  if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
  return static_cast<T>(kIgnoredTarget);
}

}  // namespace

namespace {

// A whole number without a fraction.
std::string text_of(const Cell& cell) {
  return cell.is_whole() ? std::to_string(cell.integer()) : toml_number(cell.number());
}

}  // namespace

std::string problem_of_number(double number, const TensorSpec& tensor) {
  if (!std::isfinite(number)) {
    return std::string(std::isnan(number) ? "is NaN" : "is infinite") + "; expected a number";
  }
  if (isFloatingType(tensor.dtype)) {
    const bool fits = tensor.dtype == at::kDouble || std::isfinite(static_cast<float>(number));
    return fits ? "" : "is " + toml_number(number) + ", which is too large for fp32";
  }
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  const bool inside = tensor.range == 0 ? number >= -kEnd && number < kEnd
                                        : number >= 0 && number < static_cast<double>(tensor.range);
  if (number == std::floor(number) && inside) return "";
  return "is " + toml_number(number) + "; " + quote(tensor.name) + " takes whole numbers " +
         (tensor.range > 0 ? "from 0 to " + std::to_string(tensor.range - 1) : "of 64 bits");
}

std::string problem_of_class(double number) {
  constexpr double kMostClasses = 1e7;
  if (number >= 0 && number == std::floor(number) && number <= kMostClasses) return "";
  return "has the element " + toml_number(number) + "; a class is a whole number from 0 on";
}

std::string problem_of_inexact(const Cell& cell) {
  return std::string(kAboutNumber) + toml_number(cell.number()) +
         ", beyond 2^53, where whole numbers are not told apart";
}

std::string problem_of_word(const Cell& cell, const PlannedColumn& column) {
  if (cell.is_inexact()) return problem_of_inexact(cell);
  if (!cell.has_word()) {
    return "is " + toml_number(cell.number()) +
           "; a category of numbers takes whole ones up to 2^53";
  }
  if (column.options.as != ColumnUse::kLabel) return "";
  std::string room;  // words of labels are names in files of predictions
  const std::string_view word = cell.word(room);
  return count_not_utf8(word) == 0 ? "" : "is " + quote(word) + ", which is not UTF-8";
}

void UnknownWords::add(std::string_view word) {
  const std::scoped_lock lock(mutex_);
  if (count_++ == 0) first_ = word;
}

std::string UnknownWords::note(const std::string& column) const {
  const std::scoped_lock lock(mutex_);
  if (count_ == 0) return "";
  return plural(count_, "row") + " with a word in " + quote(column) +
         " that was not there in training, the first " + quote(first_) + ": it stands for no word";
}

ColumnEncoder::ColumnEncoder(const PlannedColumn& column, const TensorSpec& tensor)
    : column_(column), tensor_(tensor) {
  for (const std::string& word : column.words) indices_.emplace(word, std::ssize(indices_));
}

void ColumnEncoder::encode(const Values& values, std::span<const std::int64_t> slots,
                           const at::Tensor& out, const Complain& complain,
                           const at::Tensor& mask) const {
  if (column_.unit.is_needed() && !values.integers.empty()) {
    std::vector<std::int64_t> numbers;
    const std::vector<std::int64_t> left = change_unit(values, slots, numbers, complain);
    Values changed = values;
    changed.integers = numbers;
    return encode_known(changed, left, out, complain, mask);
  }
  encode_known(values, slots, out, complain, mask);
}

std::vector<std::int64_t> ColumnEncoder::change_unit(const Values& values,
                                                     std::span<const std::int64_t> slots,
                                                     std::vector<std::int64_t>& numbers,
                                                     const Complain& complain) const {
  std::vector<std::int64_t> left(slots.begin(), slots.end());
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const Cell cell(values, i);
    const auto row = static_cast<std::size_t>(values.first_row + i);
    const std::optional<std::int64_t> number =
        cell.is_there() ? column_.unit(cell.integer()) : std::optional<std::int64_t>(0);
    numbers.push_back(number.value_or(0));
    if (number || left[row] < 0) continue;
    complain(values.first_row + i,
             "is " + text_of(cell) + ", which is too large as " + column_.column.type_name,
             kBadRowHint);
    left[row] = -1;
  }
  return left;
}

void ColumnEncoder::encode_known(const Values& values, std::span<const std::int64_t> slots,
                                 const at::Tensor& out, const Complain& complain,
                                 const at::Tensor& mask) const {
  if (column_.options.as == ColumnUse::kText) {
    encode_text(values, slots, out, complain, mask);
  } else if (out.scalar_type() == at::kFloat) {
    encode_rows<float>(values, slots, out, complain);
  } else if (out.scalar_type() == at::kDouble) {
    encode_rows<double>(values, slots, out, complain);
  } else {
    encode_rows<std::int64_t>(values, slots, out, complain);
  }
}

template <class T>
void ColumnEncoder::encode_rows(const Values& values, std::span<const std::int64_t> slots,
                                const at::Tensor& out, const Complain& complain) const {
  const bool are_plain = std::is_floating_point_v<T> && isFloatingType(tensor_.dtype);
  if (are_plain && column_.options.as == ColumnUse::kNumber) {
    if (!values.integers.empty()) {
      return encode_numbers<T>(values, values.integers, slots, out, complain);
    }
    if (values.type == ValueType::kNumber) {
      return encode_numbers<T>(values, values.numbers, slots, out, complain);
    }
  }
  T* const data = out.mutable_data_ptr<T>() + column_.offset;
  const std::int64_t width = out.size(1);
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const std::int64_t slot = slots[static_cast<std::size_t>(values.first_row + i)];
    if (slot >= 0) encode_cell(values, i, data + slot * width, complain);
  }
}

// Nearly all values are there and fit, so the others alone are looked at closely.
template <class T, class Number>
void ColumnEncoder::encode_numbers(const Values& values, std::span<const Number> numbers,
                                   std::span<const std::int64_t> slots, const at::Tensor& out,
                                   const Complain& complain) const {
  T* const data = out.mutable_data_ptr<T>() + column_.offset;
  const std::int64_t width = out.size(1);
  const std::span<const std::int64_t> own =
      slots.subspan(static_cast<std::size_t>(values.first_row), numbers.size());
  // Where values are only looked at, `out` is of another type than the tensor.
  const bool is_double = tensor_.dtype == at::kDouble;
  const bool any_ignored = column_.options.missing == Missing::kIgnore;
  const double shift = column_.shift, scale = column_.scale;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (own[i] < 0) continue;
    T* const place = data + own[i] * width;
    const double value = (static_cast<double>(numbers[i]) - shift) * scale;
    const bool is_there = values.there.empty() || values.there[i] != 0;
    const bool fits = is_double ? std::isfinite(value) : std::isfinite(static_cast<float>(value));
    if (is_there && !any_ignored && fits) {
      *place = static_cast<T>(value);
    } else {
      encode_cell(values, static_cast<std::int64_t>(i), place, complain);
    }
  }
}

template <class T>
void ColumnEncoder::encode_cell(const Values& values, std::int64_t i, T* out,
                                const Complain& complain) const {
  const std::int64_t row = values.first_row + i;
  const Cell cell(values, i);
  const bool is_left_out = column_.options.missing == Missing::kIgnore &&
                           column_.has_ignored_targets() && cell.is_ignored_target();
  if (cell.is_there() && !is_left_out) {
    write(cell, row, out, complain);
  } else {
    write_missing(row, out, complain);
  }
}

void ColumnEncoder::encode_text(const Values& values, std::span<const std::int64_t> slots,
                                const at::Tensor& out, const Complain& complain,
                                const at::Tensor& mask) const {
  auto* const data = out.mutable_data_ptr<std::int64_t>() + column_.offset;
  std::string room;
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const std::int64_t row = values.first_row + i;
    const std::int64_t slot = slots[static_cast<std::size_t>(row)];
    if (slot < 0) continue;
    const Cell cell(values, i);
    std::int64_t* const ids = data + slot * out.size(1);
    std::int64_t count = 0;
    if (cell.is_there()) {
      const std::vector<std::int64_t> first = column_.tokens->first(cell.word(room), column_.width);
      std::ranges::copy(first, ids);
      count = std::ssize(first);
      std::fill(ids + count, ids + column_.width, column_.tokens->filler());
    } else {
      write_missing(row, ids, complain);
    }
    if (!mask.defined()) continue;
    const std::int64_t begin = slot * mask.size(1) + column_.mask_offset;
    if (mask.scalar_type() == at::kFloat) mark<float>(mask, begin, count, column_.width);
    if (mask.scalar_type() == at::kDouble) mark<double>(mask, begin, count, column_.width);
    if (mask.scalar_type() == at::kLong) mark<std::int64_t>(mask, begin, count, column_.width);
  }
}

template <class T>
void ColumnEncoder::write(const Cell& cell, std::int64_t row, T* out,
                          const Complain& complain) const {
  switch (column_.options.as) {
    case ColumnUse::kNumber:
      return write_number((cell.number() - column_.shift) * column_.scale, row, out, complain);
    case ColumnUse::kCategory:
      return write_category(cell, row, out, complain);
    case ColumnUse::kLabel:
      return write_label(cell, row, out, complain);
    case ColumnUse::kTensor:
      return write_list(cell, row, out, complain);
    case ColumnUse::kImage:
      return;  // an ImageColumn reads it
    case ColumnUse::kText:
      break;  // in encode_text()
    case ColumnUse::kWeight:
      return write_weight(cell.number(), row, out, complain);
    case ColumnUse::kIgnore:
      return;  // it is in no plan
  }
}

template <class T>
void ColumnEncoder::write_missing(std::int64_t row, T* out, const Complain& complain) const {
  switch (column_.options.missing) {
    case Missing::kError:
    case Missing::kSkipRow:
      return complain(row, "has no value",
                      column_.options.as == ColumnUse::kNumber
                          ? "missing = \"mean\", \"zero\" or \"skip_row\" says what to do"
                          : "missing = \"skip_row\" leaves such rows out" +
                                std::string(tensor_.role == TensorRole::kTarget
                                                ? ", and \"ignore\" such targets"
                                                : ""));
    case Missing::kMostFrequent:
      if (!column_.has_replacement()) return write_index(index_of(column_.usual_word), out);
      [[fallthrough]];
    case Missing::kMean:
    case Missing::kMedian:
    case Missing::kConstant:
      return write_number((column_.mean - column_.shift) * column_.scale, row, out, complain);
    case Missing::kIgnore:
      std::fill_n(out, column_.width, ignored_target<T>());
      return;
    case Missing::kOwnWord:
      return write_index(own_index(), out);
    case Missing::kZero:
      std::fill_n(out, column_.width,
                  static_cast<T>(column_.tokens ? column_.tokens->filler() : 0));
      // A word of its own, where words are numbers.
      const bool index = column_.options.as == ColumnUse::kCategory &&
                         (column_.options.encode == Encode::kIndex || !std::is_floating_point_v<T>);
      if (index) out[0] = static_cast<T>(column_.words.size());
  }
}

template <class T>
void ColumnEncoder::write_number(double number, std::int64_t row, T* out,
                                 const Complain& complain) const {
  const std::string problem = problem_of_number(number, tensor_);
  if (!problem.empty()) return complain(row, problem, kBadRowHint);
  *out = static_cast<T>(number);
}

template <class T>
void ColumnEncoder::write_weight(double weight, std::int64_t row, T* out,
                                 const Complain& complain) const {
  if (!(weight < 0)) return write_number(weight, row, out, complain);
  complain(row, "is " + toml_number(weight) + "; a sample weighs 0 or more",
           "a weight of 0 leaves a row out of the loss");
}

template <class T>
void ColumnEncoder::write_category(const Cell& cell, std::int64_t row, T* out,
                                   const Complain& complain) const {
  const std::string problem = problem_of_word(cell, column_);
  if (!problem.empty()) return complain(row, problem, kBadRowHint);
  std::string room;
  const std::string_view word = cell.word(room);
  std::int64_t index = 0;
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(1, column_.options.size));
  const bool hashed = column_.options.encode == Encode::kHash;
  if (hashed) {
    index = static_cast<std::int64_t>(content_hash(word) % size);
  } else {
    // A word that the training side does not have: all zeros, or the number after the last.
    const std::optional<std::int64_t> found = index_of(word);
    if (!found) unknown_->add(column_.shown_word(word));
    index = found.value_or(std::ssize(column_.words) + (column_.has_own_word() ? 1 : 0));
  }
  write_index(index, out);
}

template <class T>
void ColumnEncoder::write_index(std::optional<std::int64_t> found, T* out) const {
  const std::int64_t index = found.value_or(std::ssize(column_.words));
  if (!std::is_floating_point_v<T> || column_.options.encode == Encode::kIndex) {
    *out = static_cast<T>(index);
    return;
  }
  std::fill_n(out, column_.width, T{0});
  if (index < column_.width) out[index] = T{1};
}

template <class T>
void ColumnEncoder::write_label(const Cell& cell, std::int64_t row, T* out,
                                const Complain& complain) const {
  if (column_.label == LabelType::kValue) {
    return write_number((cell.number() - column_.shift) * column_.scale, row, out, complain);
  }
  const bool is_class = column_.label == LabelType::kClass, has_words = column_.has_words();
  const std::int64_t classes = is_class ? std::max(tensor_.range, column_.classes) : 2;
  if (has_words && (indices_.empty() || !cell.has_word())) {  // nothing learned, or no word
    const std::string problem = problem_of_word(cell, column_);
    if (!problem.empty()) complain(row, problem, kBadRowHint);
    return;
  }
  std::string room;
  const std::string_view word = has_words ? cell.word(room) : std::string_view();
  const double label =
      has_words ? static_cast<double>(index_of(word).value_or(classes)) : cell.number();
  if (label >= 0 && label < static_cast<double>(classes) && label == std::floor(label)) {
    *out = static_cast<T>(label);
    return;
  }
  if (column_.has_ignored_targets() && cell.is_ignored_target()) {
    return complain(row, "is -100, which stands for an ignored target", kIgnoredTargetHint);
  }
  if (is_class && has_words) {
    return complain(row,
                    "is " + quote(column_.shown_word(word)) + ", which is none of the " +
                        std::to_string(indices_.size()) + " classes of training",
                    kBadRowHint);
  }
  const std::string key(tensor_.range_key);
  complain(row,
           "is " + (has_words ? quote(column_.shown_word(word)) : text_of(cell)) + "; " +
               (is_class ? "the model has classes 0 to " + std::to_string(classes - 1)
                         : "an answer is 0 or 1"),
           is_class ? "raise the model's " + (key.empty() ? "classes" : key) +
                          ", or leave it out: the numbers then are names of classes"
                    : "loss = \"cross_entropy\" takes classes");
}

template <class T>
void ColumnEncoder::write_list(const Cell& cell, std::int64_t row, T* out,
                               const Complain& complain) const {
  const std::span<const double> numbers = cell.list();
  if (column_.width == 0) return;  // nothing has been learned
  if (std::ssize(numbers) != column_.width) {
    return complain(row,
                    "is a list of " + plural(std::ssize(numbers), "number") + "; expected " +
                        std::to_string(column_.width),
                    std::string("lists of a tensor have one length; ") + kBadRowHint);
  }
  const bool is_class = tensor_.role == TensorRole::kTarget && !std::is_floating_point_v<T>;
  const bool ignores = column_.options.missing == Missing::kIgnore;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double number = numbers[i];
    const bool is_left_out = is_class && number == static_cast<double>(kIgnoredTarget);
    if (std::isnan(number) && !ignores) {
      return complain(row, "has an element that is NaN or without a value; expected numbers",
                      kBadRowHint);
    }
    if (std::isnan(number) || is_left_out) {
      out[i] = ignored_target<T>();
    } else if (is_class && !problem_of_class(number).empty()) {
      return complain(row, problem_of_class(number), kBadRowHint);
    } else {
      write_number(number, row, out + i, complain);
    }
  }
}

std::int64_t ColumnEncoder::own_index() const {
  if (column_.options.encode != Encode::kHash) return std::ssize(column_.words);
  using namespace std::string_view_literals;  // a word that text does not have
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(1, column_.options.size));
  return static_cast<std::int64_t>(content_hash("\0missing"sv) % size);
}

std::optional<std::int64_t> ColumnEncoder::index_of(std::string_view word) const {
  const auto found = indices_.find(word);
  return found == indices_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace troika
