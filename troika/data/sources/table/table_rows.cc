#include <troika/base/random.h>
#include <troika/data/sources/table/table_rows.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troika {
namespace {

// The sides are the same with any seed of the run.
const std::uint64_t kSidesKey = stream_key(0, "data.table.sides");

}  // namespace

TableRows::TableRows(std::span<const RowGroup> groups, double held_out_fraction,
                     double test_fraction)
    : groups_(groups),
      holds_out_(held_out_fraction > 0),
      has_test_(test_fraction > 0),
      held_out_limit_(static_cast<std::uint64_t>(std::ldexp(held_out_fraction, 64))),
      test_limit_(static_cast<std::uint64_t>(std::ldexp(held_out_fraction + test_fraction, 64))),
      marks_(groups.size()) {
  count();
}

void TableRows::mark(std::size_t group, std::int64_t row, RowSide side) {
  std::vector<RowSide>& marks = marks_[group];
  if (marks.empty()) {
    for (std::int64_t i = 0; i < groups_[group].rows; ++i) {
      marks.push_back(drawn_side(groups_[group].first_row + i));
    }
  }
  marks[static_cast<std::size_t>(row)] = side;
}

void TableRows::mark_group(std::size_t group, RowSide side) {
  marks_[group].assign(static_cast<std::size_t>(groups_[group].rows), side);
}

void TableRows::hold_out_test_if_alone() {
  count();
  if (total(Split::kHeldOut) > 0) return;
  for (std::vector<RowSide>& marks : marks_) {
    std::ranges::replace(marks, RowSide::kTest, RowSide::kHeldOut);
  }
  count();
}

void TableRows::hold_out_test() {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::int64_t row = 0; row < groups_[group].rows; ++row) {
      const RowSide side = side_of(group, row);
      if (side == RowSide::kHeldOut) mark(group, row, RowSide::kNone);
      if (side == RowSide::kTest) mark(group, row, RowSide::kHeldOut);
    }
  }
  count();
}

void TableRows::count() {
  train_.assign(groups_.size(), 0);
  held_out_.assign(groups_.size(), 0);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::int64_t row = 0; row < groups_[group].rows; ++row) {
      const RowSide side = side_of(group, row);
      if (side == RowSide::kTrain) ++train_[group];
      if (side == RowSide::kHeldOut) ++held_out_[group];
    }
  }
}

std::int64_t TableRows::total(Split split) const {
  return std::accumulate(counts(split).begin(), counts(split).end(), std::int64_t{0});
}

std::vector<std::int64_t> TableRows::slots(std::size_t group, Split split) const {
  const RowSide wanted = split == Split::kTrain ? RowSide::kTrain : RowSide::kHeldOut;
  std::vector<std::int64_t> slots(static_cast<std::size_t>(groups_[group].rows), -1);
  std::int64_t next = 0;
  for (std::int64_t row = 0; row < groups_[group].rows; ++row) {
    if (side_of(group, row) == wanted) slots[static_cast<std::size_t>(row)] = next++;
  }
  return slots;
}

RowSide TableRows::side_of(std::size_t group, std::int64_t row) const {
  const std::vector<RowSide>& marks = marks_[group];
  if (!marks.empty()) return marks[static_cast<std::size_t>(row)];
  return drawn_side(groups_[group].first_row + row);
}

RowSide TableRows::drawn_side(std::int64_t row) const {
  if (!holds_out_ && !has_test_) return RowSide::kTrain;
  const std::uint64_t drawn = mix_bits(kSidesKey ^ static_cast<std::uint64_t>(row));
  if (holds_out_ && drawn < held_out_limit_) return RowSide::kHeldOut;
  return has_test_ && drawn < test_limit_ ? RowSide::kTest : RowSide::kTrain;
}

}  // namespace troika
