// Internal: how the columns of a table become the tensors of a model: which column goes where, and
// what the rows have taught about it. table_description.h keeps it for other tables.
#pragma once

#include <troika/data/sources/table/options.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/data/sources/table/table_rows.h>
#include <troika/data/sources/table/text_tokens.h>
#include <troika/data/sources/table/time_unit.h>
#include <troika/data/value_scale.h>
#include <troika/nn/sample_spec.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The meaning of a label for a sample; see TargetMeaning.
enum class LabelType { kClass, kAnswer, kValue };

struct PlannedColumn {
  TableColumn column;
  ColumnOptions options;
  std::size_t tensor = 0;  // in TablePlan::tensors
  LabelType label = LabelType::kValue;
  std::int64_t offset = 0;  // of its numbers in a row of the tensor
  std::int64_t width = 1;
  std::shared_ptr<const TextTokens> tokens;  // of text
  std::optional<std::size_t> mask;           // of text: the tensor with 1 where there is a token
  std::int64_t mask_offset = 0;
  UnitChange unit;  // of whole numbers that another table stores
  // Learned from the rows. A number becomes (number - shift) * scale.
  double shift = 0;
  double scale = 1;
  double mean = 0;                 // stands for no value: a mean, a median, ...
  std::string usual_word;          // stands for no value of a category
  std::vector<std::string> words;  // of a category or a label of words, in sorted order
  std::int64_t classes = 0;        // of a label that is a class
  // The only value that all rows of a class or an answer have. It is not kept.
  std::optional<std::string> only_value;

  // Returns whether -100 stands for an ignored target, as in lists: in labels that are classes or
  // answers.
  [[nodiscard]] bool has_ignored_targets() const {
    return options.as == ColumnUse::kLabel && label != LabelType::kValue && !is_temporal(column);
  }
  // Returns what its use expects of a column, for messages, and whether values of a type fit.
  [[nodiscard]] std::string_view expected() const;
  [[nodiscard]] bool fits(ValueType type) const;
  // Returns a word as people write it: a date, where the column stores dates as whole numbers.
  [[nodiscard]] std::string shown_word(std::string_view word) const;
  // Returns whether its values are looked up in `words`.
  [[nodiscard]] bool has_words() const;
  // Returns whether it is a part of a target of these tensors.
  [[nodiscard]] bool is_of_target(const std::vector<TensorSpec>& tensors) const;
  // Returns whether a category has a place for rows without a value, behind those of its words.
  [[nodiscard]] bool has_own_word() const { return options.missing == Missing::kOwnWord; }
  // Returns whether `mean` stands for no value.
  [[nodiscard]] bool has_replacement() const;
  // Returns whether it needs to have seen the numbers of the training side.
  [[nodiscard]] bool needs_statistics() const;
};

struct TablePlan {
  std::vector<TensorSpec> tensors;  // the model's, with sizes from the columns where they were open
  std::vector<PlannedColumn> columns;

  [[nodiscard]] std::vector<std::string> names() const;
  // Returns the numbers of a sample in a tensor.
  [[nodiscard]] std::int64_t width(std::size_t tensor) const;
  // Returns whether a tensor is an image, and the numbers of a sample that the cache keeps: none of
  // an image, which is kept as it is stored.
  [[nodiscard]] bool holds_images(std::size_t tensor) const;
  [[nodiscard]] std::int64_t cached_width(std::size_t tensor) const;
  // Returns the bytes of a sample in all tensors, as the cache keeps it, but for images.
  [[nodiscard]] std::int64_t sample_bytes() const;
  // Returns what the labels call a target's classes, by number, or its answers or values, by place.
  [[nodiscard]] std::vector<std::string> target_names() const;
  // Returns the unit of the first target's values, by place; empty where none is normalised.
  [[nodiscard]] std::vector<ValueScale> target_scales() const;
  // Returns it as JSON: what predictions on other tables need.
  [[nodiscard]] std::string describe() const;
};

// Returns the name of the model's tensor that a column is a part of.
[[nodiscard]] std::string_view name_of_tensor(const ColumnOptions& column,
                                              const SampleSpec& sample);

// Opens the tokenizer of a text column, and finds the tensor of its mask. Throws DataError where
// its ids are not those of its tensor.
void open_text(PlannedColumn& column, const std::vector<TensorSpec>& tensors);

// Returns what labels of a target are.
[[nodiscard]] LabelType label_type(const TensorSpec& target);

// Finds the columns of the recipe in the files and the tensors that they go into. Throws DataError
// naming a column that is missing or of another type, and UsageError naming a tensor that the model
// does not have.
[[nodiscard]] TablePlan plan_columns(const TableFiles& files, const TableOptions& options,
                                     const SampleSpec& sample);

// Gives each column its place, once its words are known. Throws DataError where the model's size is
// not what the columns give.
void lay_out_columns(TablePlan& plan);

}  // namespace troika
