// Internal: which rows of a table belong to which side. Where nothing else says it, a row is held
// out by a hash of its number, so that the sides do not depend on the seed, the machine or the
// number of ranks.
#pragma once

#include <troika/data/packing.h>
#include <troika/data/sources/table/table_files.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// The side that a row belongs to. kTest is for rows that belong to neither side of a run.
enum class RowSide : std::uint8_t { kTrain, kHeldOut, kTest, kNone };

// Const access is thread safe.
class TableRows {
 public:
  TableRows(std::span<const RowGroup> groups, double held_out_fraction, double test_fraction = 0);

  // Change the side of one row, or of all rows of a group. Takes a byte a row of that group.
  void mark(std::size_t group, std::int64_t row, RowSide side);
  void mark_group(std::size_t group, RowSide side);
  // Counts the rows of each side; call after marks.
  void count();
  // Holds rows that are marked as kTest out if no other row is, and counts.
  void hold_out_test_if_alone();
  // Holds the rows of kTest out in place of the others, which are left out, and counts.
  void hold_out_test();

  [[nodiscard]] RowSide side_of(std::size_t group, std::int64_t row) const;
  // Returns the number of rows of a side in each group.
  [[nodiscard]] const std::vector<std::int64_t>& counts(Split split) const {
    return split == Split::kTrain ? train_ : held_out_;
  }
  [[nodiscard]] std::int64_t total(Split split) const;
  // Returns for each row of a group its number among those of the side there; -1 for other rows.
  [[nodiscard]] std::vector<std::int64_t> slots(std::size_t group, Split split) const;

 private:
  [[nodiscard]] RowSide drawn_side(std::int64_t row) const;

  std::span<const RowGroup> groups_;
  bool holds_out_, has_test_;
  std::uint64_t held_out_limit_, test_limit_;  // of a row's hash; the first lies below the second
  std::vector<std::vector<RowSide>> marks_;    // by group; empty: as drawn
  std::vector<std::int64_t> train_, held_out_;
};

}  // namespace troika
