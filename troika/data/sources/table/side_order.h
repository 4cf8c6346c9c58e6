// The order in which the rows of one side of a table come: that of a RowOrder, or classes in turn,
// equally often, each with a RowOrder of its own. No tensors here.
#pragma once

#include <troika/data/sampler.h>
#include <troika/data/sources/table/row_order.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troika {

// Const access is thread safe.
class SideOrder {
 public:
  // Takes the number of rows of each group, as RowOrder does.
  SideOrder(std::uint64_t key, const std::vector<std::int64_t>& rows, std::int64_t window_rows);
  // Takes the number of rows of each class in each group. Each class has a row. The windows of all
  // classes together hold `window_rows`.
  SideOrder(std::uint64_t key, const std::vector<std::vector<std::int64_t>>& rows_of_classes,
            std::int64_t window_rows);

  [[nodiscard]] bool is_balanced() const { return turns_.has_value(); }
  // Returns the sample at a place of the order. Its `source` is the class, in their given order,
  // and 0 where these are not balanced. Its `epoch` and `index` count among the rows of the class.
  [[nodiscard]] SampleRef at(std::int64_t ordinal) const;
  // Finds its row: the group, and its number there among the rows of the side, or of the class.
  [[nodiscard]] RowPosition position(const SampleRef& sample) const;
  // Returns the place at which the window of a sample begins, and the groups of the window after
  // it: 0 and none where classes are balanced.
  [[nodiscard]] std::int64_t window_of(const SampleRef& sample) const;
  [[nodiscard]] std::vector<std::size_t> next_groups(const SampleRef& sample) const;

 private:
  // The rows of a class, or of all.
  struct Rows {
    std::vector<std::size_t> groups;  // that have one
    std::unique_ptr<RowOrder> order;  // of these
  };
  static Rows rows_of(std::uint64_t key, const std::vector<std::int64_t>& rows,
                      std::int64_t window_rows);

  std::vector<Rows> rows_;
  std::optional<Mixture> turns_;
};

}  // namespace troika
