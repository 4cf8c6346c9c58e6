// Internal: the rows of a table as samples.
#pragma once

#include <troika/data/dataset.h>
#include <troika/data/kind.h>
#include <troika/data/named_files.h>
#include <troika/data/sources/table/class_rows.h>
#include <troika/data/sources/table/column_contents.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/data/sources/table/column_learner.h>
#include <troika/data/sources/table/group_cache.h>
#include <troika/data/sources/table/image_column.h>
#include <troika/data/sources/table/side_order.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// A table whose columns have been found in its files, and whose rows have been told apart.
struct OpenTable {
  struct Search {
    // Throws DataError.
    Search(const TableOptions& options, const TextFormat& format);

    std::vector<FoundFile> files;
    std::vector<RowSide> sides;  // of each
    std::string note;            // names files that are no tables; empty where all are
  };

  Search search;
  TableFiles files;
  TableRows rows;
  TablePlan plan;
  std::vector<std::string> warnings;
  std::unique_ptr<DecodeWorkers> workers = std::make_unique<DecodeWorkers>(0);

  std::vector<std::string> target_names;
  std::vector<ValueScale> target_scales;

  // Finds the files and learns what `lesson` says. Throws DataError.
  OpenTable(const TableOptions& options, const SampleSpec& sample, Lesson lesson);
  // Finds the files, and in them the columns that training has described. Throws DataError.
  OpenTable(const TableOptions& options, const SampleSpec& sample, const TrainedData& trained);

 private:
  void choose_rows(const TableOptions& options);
  void leave_out_bad_rows(const TableOptions& options);
  void warn_of_one_class();
};

class TableDataset final : public Dataset, public NamesFiles {
 public:
  // Opens a table to train on, or for a trained model, as DataKind::open_for_model() says.
  TableDataset(const TableOptions& options, const SampleSpec& sample, std::uint64_t seed,
               const TrainedData* trained = nullptr);

  [[nodiscard]] std::int64_t samples(Split split) const override;
  [[nodiscard]] SampleRef at(Split split, std::int64_t ordinal) const override;
  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override;
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::vector<DataFile> files() const override { return files_; }
  [[nodiscard]] std::vector<DataFile> named_files(const std::stop_token& stop) const override;
  [[nodiscard]] std::optional<double> bytes_per_token() const override { return std::nullopt; }
  [[nodiscard]] DatasetFacts facts() const override;
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  [[nodiscard]] std::string description() const override { return table_.plan.describe(); }
  [[nodiscard]] std::vector<std::string> target_names() const override {
    return table_.target_names;
  }
  [[nodiscard]] std::vector<ValueScale> target_scales() const override {
    return table_.target_scales;
  }
  [[nodiscard]] std::vector<std::string> contents() const override {
    return contents_of(table_.plan);
  }
  [[nodiscard]] std::unique_ptr<KeptColumns> open_columns(
      std::span<const std::string> names) const override;
  [[nodiscard]] std::vector<std::string> notes() const override;

  // Returns how many row groups were decoded so far for a side.
  [[nodiscard]] std::int64_t decoded_groups(Split split) const;

 private:
  struct Side {
    SideOrder order;
    GroupCache cache;
    bool reads_ahead = false;
    // The window whose next one was asked for ahead.
    std::atomic<std::int64_t> read_ahead_of = -1;
  };
  // Opens the rows of a side; null where it has none.
  [[nodiscard]] std::unique_ptr<Side> open_side(Split split, std::uint64_t seed,
                                                std::int64_t cache_bytes) const;
  [[nodiscard]] Side& side(Split split) const {
    return split == Split::kTrain ? *train_ : *held_out_;
  }
  [[nodiscard]] DecodedGroup decode(std::size_t group, Split split) const;
  // Has the next window decoded while that of `sample` is read.
  void read_ahead(Side& side, const SampleRef& sample) const;
  // Returns what reads a column of images; null for others.
  [[nodiscard]] const ImageColumn* image_column(std::size_t column) const;
  // Decodes the images of samples into `out`, the model's tensors.
  void read_images(Split split, std::span<const SampleRef> samples, std::int64_t step,
                   std::span<const at::Tensor> out) const;

  OpenTable table_;
  bool in_order_ = false;  // rows come in the order of the table
  std::string_view hint_;  // for a value that cannot be used
  std::vector<ColumnEncoder> encoders_;
  std::vector<ImageColumn> images_;
  std::optional<ClassRows> classes_;  // where these come equally often
  std::unique_ptr<Side> train_, held_out_;
  std::vector<DataFile> files_;
  std::string fingerprint_;
  std::vector<std::string> warnings_;
};

}  // namespace troika
