// Internal: a column of images: their bytes, or the paths of files. A group keeps them as they are
// stored; each is decoded where a sample needs it, as what is drawn differs from epoch to epoch.
#pragma once

#include <troika/data/images/decode_workers.h>
#include <troika/data/images/image_reader.h>
#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/column_learner.h>
#include <troika/data/sources/table/column_plan.h>
#include <troika/data/sources/table/group_cache.h>
#include <troika/data/sources/table/table_rows.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace troika {

// Const access is thread safe.
class ImageColumn {
 public:
  // Takes a column whose place in the plan is `index`. `key` keys what is drawn. Keeps references
  // to all of them.
  ImageColumn(const TablePlan& plan, std::size_t index, const TableFiles& files, std::uint64_t key);

  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] std::size_t tensor() const { return column_.tensor; }

  // Appends the rows of `values` that have a slot. Complains of those without a value.
  void append_stored(const Values& values, std::span<const std::int64_t> slots, StoredImages& out,
                     const Complain& complain) const;
  // Writes the image of a slot to `out`. Throws DataError naming its row.
  void read(const StoredImages& images, std::size_t group, std::int64_t slot,
            const std::optional<std::int64_t>& ordinal, float* out) const;
  // Returns the files that the column names, each once, in the order of the rows; none where it has
  // the bytes of images. Reads the whole column, until it is told to stop. Throws DataError.
  [[nodiscard]] std::vector<std::string> named_files(const std::stop_token& stop) const;
  // Returns what is wrong with the image of a cell; empty where nothing is.
  [[nodiscard]] std::string check(const Cell& cell, std::size_t group) const;

 private:
  const PlannedColumn& column_;
  const TableFiles& files_;
  std::size_t index_;
  std::uint64_t key_;
  std::optional<ImageReader> reader_;  // absent while the size is not known
};

// Returns whether a column of these files holds paths instead of bytes.
[[nodiscard]] bool holds_paths(const PlannedColumn& column, const TableFiles& files);

// Learns the size of images where neither model nor recipe says it, from the first, and what
// normalises them from up to 1,024 rows of the training side. Throws DataError.
void learn_images(TablePlan& plan, const TableFiles& files, const TableRows& rows, Lesson lesson,
                  DecodeWorkers& workers);

}  // namespace troika
