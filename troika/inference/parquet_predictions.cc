// Writes predictions as Parquet, by the plug-in for Arrow.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/inference/prediction_writer.h>
#include <troika/storage/first_line_into.h>

#include <exception>
#include <utility>

namespace troika {
namespace {

using arrow_plugin::ValueType;

// Some rows of predictions as the plug-in takes them, and what these point to.
class ParquetRows {
 public:
  ParquetRows(std::span<const PredictedColumn> columns, std::span<const at::Tensor> rows,
              std::span<const KeptColumn> kept, std::span<const KeptValues> values) {
    texts_.reserve(columns.size() + kept.size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].type != at::kLong) {
        add_numbers(rows[i]);
      } else if (columns[i].texts.empty()) {
        add_integers(rows[i]);
      } else {
        add_words(rows[i], columns[i].texts);
      }
      for (std::size_t k = 0; i == 0 && k < kept.size(); ++k) add_kept(kept[k].type, values[k]);
    }
  }

  [[nodiscard]] std::span<const arrow_plugin::Values> values() const { return values_; }

 private:
  struct Text {
    std::string text;
    std::vector<std::int64_t> offsets = {0};
  };

  arrow_plugin::Values& add(ValueType type, std::int64_t rows) {
    arrow_plugin::Values& values = values_.emplace_back();
    values.type = type;
    values.rows = rows;
    return values;
  }

  void add_numbers(const at::Tensor& rows) {
    const std::int64_t count = rows.size(0);
    const at::Tensor by_title = rows.view({count, -1}).t().to(at::kDouble).contiguous();
    kept_.push_back(by_title);
    for (std::int64_t k = 0; k < by_title.size(0); ++k) {
      add(ValueType::kNumber, count).numbers = {by_title.const_data_ptr<double>() + k * count,
                                                static_cast<std::size_t>(count)};
    }
  }

  void add_integers(const at::Tensor& rows) {
    const std::int64_t count = rows.size(0);
    const at::Tensor by_title = rows.view({count, -1}).t().contiguous();
    kept_.push_back(by_title);
    for (std::int64_t k = 0; k < by_title.size(0); ++k) {
      add(ValueType::kInteger, count).integers = {
          by_title.const_data_ptr<std::int64_t>() + k * count, static_cast<std::size_t>(count)};
    }
  }

  void add_words(const at::Tensor& rows, const std::vector<std::string>& words) {
    Text& room = texts_.emplace_back();
    const at::Tensor numbers = rows.contiguous();
    const auto* const number = numbers.const_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < numbers.size(0); ++row) {
      room.text += words.at(static_cast<std::size_t>(number[row]));
      room.offsets.push_back(std::ssize(room.text));
    }
    arrow_plugin::Values& values = add(ValueType::kText, rows.size(0));
    values.text = room.text;
    values.offsets = room.offsets;
  }

  void add_kept(KeptType type, const KeptValues& kept) {
    const auto rows = std::ssize(kept.there);
    if (type == KeptType::kInteger) add(ValueType::kInteger, rows).integers = kept.integers;
    if (type == KeptType::kNumber) add(ValueType::kNumber, rows).numbers = kept.numbers;
    if (type == KeptType::kText) {
      Text& room = texts_.emplace_back();
      for (const std::string& each : kept.texts) {
        room.text += each;
        room.offsets.push_back(std::ssize(room.text));
      }
      arrow_plugin::Values& values = add(ValueType::kText, rows);
      values.text = room.text;
      values.offsets = room.offsets;
    }
    values_.back().there = kept.there;
  }

  std::vector<arrow_plugin::Values> values_;
  std::vector<at::Tensor> kept_;
  std::vector<Text> texts_;
};

class ParquetPredictions final : public PredictionWriter {
 public:
  ParquetPredictions(std::filesystem::path path, std::vector<PredictedColumn> columns,
                     std::span<const KeptColumn> kept)
      : columns_(std::move(columns)),
        kept_(kept.begin(), kept.end()),
        path_(std::move(path)),
        file_(path_) {
    std::vector<arrow_plugin::Column> fields;
    for (const PredictedColumn& each : columns_) {
      const ValueType type = each.type != at::kLong ? ValueType::kNumber
                             : each.texts.empty()   ? ValueType::kInteger
                                                    : ValueType::kText;
      for (const std::string& title : each.titles) fields.push_back({title, type, {}, 1});
      if (&each != columns_.data()) continue;
      for (const KeptColumn& own : kept_) fields.push_back({own.name, type_of(own), {}, 1, true});
    }
    const auto take = [this](std::span<const std::byte> bytes) { return pass_on(bytes); };
    writer_ = arrow_library().create(fields, take, first_line_into(reason_));
    if (!writer_) fail();
  }

  void write(std::span<const at::Tensor> columns, std::span<const KeptValues> kept) override {
    const ParquetRows rows(columns_, columns, kept_, kept);
    if (!writer_->write(rows.values(), first_line_into(reason_))) fail();
  }

  void commit() override {
    if (!writer_->close(first_line_into(reason_))) fail();
    file_.commit();
  }

 private:
  static ValueType type_of(const KeptColumn& column) {
    if (column.type == KeptType::kText) return ValueType::kText;
    return column.type == KeptType::kInteger ? ValueType::kInteger : ValueType::kNumber;
  }

  // No exception may pass through Arrow.
  bool pass_on(std::span<const std::byte> bytes) {
    try {
      file_.write(bytes);
      return true;
    } catch (const StorageError&) {
      failure_ = std::current_exception();
      return false;
    }
  }

  [[noreturn]] void fail() const {
    if (failure_) std::rethrow_exception(failure_);
    throw StorageError("cannot write " + shown_path(path_) + ": " + reason_);
  }

  std::vector<PredictedColumn> columns_;
  std::vector<KeptColumn> kept_;
  std::filesystem::path path_;
  AtomicFile file_;
  std::exception_ptr failure_;
  std::string reason_;
  std::unique_ptr<arrow_plugin::Writer> writer_;  // gone first: it may still write
};

}  // namespace

std::unique_ptr<PredictionWriter> create_parquet_predictions(const std::filesystem::path& path,
                                                             std::vector<PredictedColumn> columns,
                                                             std::span<const KeptColumn> kept) {
  return std::make_unique<ParquetPredictions>(path, std::move(columns), kept);
}

}  // namespace troika
