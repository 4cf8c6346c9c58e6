// The order in which the rows of one side of a table come, in two levels. Row groups come in a
// keyed order; so do the rows inside a window of consecutive groups. A reader that keeps the groups
// of two windows therefore decodes each group once a pass. Any place of the order can be computed
// without the rest. No tensors here.
#pragma once

#include <troika/data/sampler.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace troika {

// A row of a side: the group it lies in, and its number among the rows of that side there.
struct RowPosition {
  std::size_t group = 0;
  std::int64_t row = 0;
};

// Const access is thread safe.
class RowOrder {
 public:
  // Takes the number of rows of each group. A window has at least one group, and as many as hold
  // `window_rows`. Requires a row in all.
  RowOrder(std::uint64_t key, const std::vector<std::int64_t>& rows, std::int64_t window_rows);
  ~RowOrder();

  // Returns the rows of a pass.
  [[nodiscard]] std::int64_t rows() const { return first_.back(); }
  // Returns the sample at a place of the order, any number of passes on: its `index` counts rows in
  // the order of the groups. Each pass holds each row once.
  [[nodiscard]] SampleRef at(std::int64_t ordinal) const;
  // Finds the row of SampleRef::index.
  [[nodiscard]] RowPosition position(std::int64_t index) const;
  // Returns the place of the order at which the window of `ordinal` begins.
  [[nodiscard]] std::int64_t window_of(std::int64_t ordinal) const;
  // Returns the groups of the window after that.
  [[nodiscard]] std::vector<std::size_t> next_groups(std::int64_t ordinal) const;

 private:
  struct Pass;
  [[nodiscard]] std::shared_ptr<const Pass> pass(std::int64_t epoch) const;
  // Returns the item at a place of a window of `in`. Readers go forward: behind the last place
  // that was asked for, several are computed at once.
  [[nodiscard]] std::int64_t drawn(const Pass& in, std::size_t window, std::int64_t place) const;

  std::uint64_t key_;
  std::int64_t window_rows_;
  std::vector<std::int64_t> first_;  // of each group, and the total
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Pass>> passes_;  // the latest last
  // The items at consecutive places of a window.
  struct Ahead {
    std::int64_t epoch = -1;
    std::size_t window = 0;
    std::int64_t first = 0;
    std::vector<std::int64_t> items;
  };
  mutable Ahead ahead_;  // of the last place
};

}  // namespace troika
