// Internal: writes the values of a column into the rows of a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/column_plan.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troika {

// Returns what is wrong with a number for a tensor; empty where nothing is.
[[nodiscard]] std::string problem_of_number(double number, const TensorSpec& tensor);
// Returns what is wrong with an element of a list of classes, where neither model nor data say how
// many there are; empty where nothing is.
[[nodiscard]] std::string problem_of_class(double number);
// Returns what is wrong with a number that is_inexact() as a category or a class.
[[nodiscard]] std::string problem_of_inexact(const Cell& cell);
// Returns what is wrong with a cell as a word of a column; empty where nothing is.
[[nodiscard]] std::string problem_of_word(const Cell& cell, const PlannedColumn& column);

// Counts words that the training side did not have. Thread safe.
class UnknownWords {
 public:
  void add(std::string_view word);
  // Says for the user how many rows of `column` there were; empty where there were none.
  [[nodiscard]] std::string note(const std::string& column) const;

 private:
  mutable std::mutex mutex_;
  std::int64_t count_ = 0;
  std::string first_;
};

// Const access is thread safe.
class ColumnEncoder {
 public:
  // Keeps references to `column`, whose words have been learned, and to its tensor.
  ColumnEncoder(const PlannedColumn& column, const TensorSpec& tensor);

  // Writes the rows of `values` that have a slot, a row of `out` [slots, width], into the column's
  // place there. `slots` is that of the whole group; those that are negative are left out. Passes
  // what cannot be used to `complain`, and leaves such a row alone. `mask`, if defined, gets 1
  // where a text has a token and else 0.
  void encode(const Values& values, std::span<const std::int64_t> slots, const at::Tensor& out,
              const Complain& complain, const at::Tensor& mask = {}) const;
  // Returns the words that were met and not learned.
  [[nodiscard]] const UnknownWords& unknown_words() const { return *unknown_; }

 private:
  template <class T>
  void encode_rows(const Values& values, std::span<const std::int64_t> slots, const at::Tensor& out,
                   const Complain& complain) const;
  // Does it for a column of numbers whose tensor is of floating point.
  template <class T, class Number>
  void encode_numbers(const Values& values, std::span<const Number> numbers,
                      std::span<const std::int64_t> slots, const at::Tensor& out,
                      const Complain& complain) const;
  template <class T>
  void encode_cell(const Values& values, std::int64_t i, T* out, const Complain& complain) const;
  // Returns the slots without those of rows that cannot be told in the unit of training, and writes
  // the numbers in that unit.
  [[nodiscard]] std::vector<std::int64_t> change_unit(const Values& values,
                                                      std::span<const std::int64_t> slots,
                                                      std::vector<std::int64_t>& numbers,
                                                      const Complain& complain) const;
  // Does what encode() does with values in the unit of training.
  void encode_known(const Values& values, std::span<const std::int64_t> slots,
                    const at::Tensor& out, const Complain& complain, const at::Tensor& mask) const;
  void encode_text(const Values& values, std::span<const std::int64_t> slots, const at::Tensor& out,
                   const Complain& complain, const at::Tensor& mask) const;
  template <class T>
  void write(const Cell& cell, std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_missing(std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_number(double number, std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_weight(double weight, std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_category(const Cell& cell, std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_label(const Cell& cell, std::int64_t row, T* out, const Complain& complain) const;
  template <class T>
  void write_list(const Cell& cell, std::int64_t row, T* out, const Complain& complain) const;
  // Marks the place of a category.
  template <class T>
  void write_index(std::optional<std::int64_t> index, T* out) const;
  // Returns the place of rows without a value, where they have a word of their own.
  [[nodiscard]] std::int64_t own_index() const;
  // Returns the place of a word; nothing where it was not learned.
  [[nodiscard]] std::optional<std::int64_t> index_of(std::string_view word) const;

  const PlannedColumn& column_;
  const TensorSpec& tensor_;
  std::unordered_map<std::string_view, std::int64_t> indices_;
  std::unique_ptr<UnknownWords> unknown_ = std::make_unique<UnknownWords>();
};

}  // namespace troika
