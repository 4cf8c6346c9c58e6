#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/inference/prediction_writer.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace troika {
namespace {

// A text in a field of CSV, as RFC 4180 has it.
std::string field_of(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char each : text) {
    quoted += each;
    if (each == '"') quoted += each;
  }
  return quoted + "\"";
}

// The number of a row, as text that reads back as the same.
std::string number_text(double value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, end};
}

// The rows of a column as doubles [rows, titles], which hold whole numbers up to 2^53 exactly.
at::Tensor doubles_of(const at::Tensor& column) {
  return column.view({column.size(0), -1}).to(at::kDouble).contiguous();
}

class CsvWriter final : public PredictionWriter {
 public:
  CsvWriter(const std::filesystem::path& path, std::vector<PredictedColumn> columns,
            std::span<const KeptColumn> kept)
      : columns_(std::move(columns)), kept_(kept.begin(), kept.end()), file_(path) {
    std::string header;
    for (const PredictedColumn& column : columns_) {
      for (const std::string& title : column.titles) {
        header += (header.empty() ? "" : ",") + field_of(title);
      }
      if (&column != columns_.data()) continue;
      for (const KeptColumn& each : kept_) header += "," + field_of(each.name);
    }
    file_.write(header + "\n");
  }

  void write(std::span<const at::Tensor> columns, std::span<const KeptValues> kept) override {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& column : columns) flat.push_back(doubles_of(column));
    std::string text;
    for (std::int64_t row = 0; row < flat.front().size(0); ++row) {
      for (std::size_t i = 0; i < flat.size(); ++i) {
        const std::int64_t width = flat[i].size(1);
        const double* const values = flat[i].const_data_ptr<double>() + row * width;
        for (std::int64_t k = 0; k < width; ++k) {
          text +=
              (i + static_cast<std::size_t>(k) == 0 ? "" : ",") + text_of(columns_[i], values[k]);
        }
        for (std::size_t k = 0; i == 0 && k < kept.size(); ++k) {
          text += "," + text_of(kept_[k], kept[k], static_cast<std::size_t>(row));
        }
      }
      text += '\n';
    }
    file_.write(text);
  }

  void commit() override { file_.commit(); }

 private:
  static std::string text_of(const PredictedColumn& column, double value) {
    if (column.type != at::kLong) return number_text(value);
    const auto whole = static_cast<std::int64_t>(value);
    if (column.texts.empty()) return std::to_string(whole);
    return field_of(column.texts.at(static_cast<std::size_t>(whole)));
  }

  // Nothing where there is no value.
  static std::string text_of(const KeptColumn& column, const KeptValues& values, std::size_t row) {
    if (values.there[row] == 0) return "";
    if (column.type == KeptType::kText) return field_of(values.texts[row]);
    return column.type == KeptType::kInteger ? std::to_string(values.integers[row])
                                             : number_text(values.numbers[row]);
  }

  std::vector<PredictedColumn> columns_;
  std::vector<KeptColumn> kept_;
  AtomicFile file_;
};

class SafetensorsPredictions final : public PredictionWriter {
 public:
  SafetensorsPredictions(const std::filesystem::path& path,
                         const std::vector<PredictedColumn>& columns, std::int64_t rows)
      : writer_(path, entries_of(columns, rows)) {
    for (const PredictedColumn& each : columns) names_.push_back(each.name);
    written_.resize(names_.size());
  }

  void write(std::span<const at::Tensor> columns, std::span<const KeptValues> /*kept*/) override {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const at::Tensor values = columns[i].contiguous();
      const std::span<const std::byte> bytes(static_cast<const std::byte*>(values.const_data_ptr()),
                                             values.nbytes());
      writer_.write_part(names_[i], written_[i], bytes);
      written_[i] += bytes.size();
    }
  }

  void commit() override { writer_.commit(); }

 private:
  static std::vector<TensorEntry> entries_of(const std::vector<PredictedColumn>& columns,
                                             std::int64_t rows) {
    std::vector<TensorEntry> entries;
    for (const PredictedColumn& each : columns) {
      TensorEntry entry;
      entry.name = each.name;
      entry.type = each.type == at::kLong     ? DataType::kI64
                   : each.type == at::kDouble ? DataType::kF64
                                              : DataType::kF32;
      entry.shape = {rows};
      const bool one = each.titles.size() == 1 && each.type == at::kLong;
      if (!one) entry.shape.push_back(std::ssize(each.titles));
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  SafetensorsWriter writer_;
  std::vector<std::string> names_;
  std::vector<std::uint64_t> written_;
};

enum class Format { kCsv, kParquet, kSafetensors };

Format format_of(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (ending == ".csv") return Format::kCsv;
  if (ending == ".parquet") return Format::kParquet;
  if (ending == ".safetensors") return Format::kSafetensors;
  throw UsageError(shown_path(path) + ": its ending does not say how to write it",
                   "end it in .csv, .parquet or .safetensors");
}

}  // namespace

void check_prediction_path(const std::filesystem::path& path) {
  (void)format_of(path);
}

std::unique_ptr<PredictionWriter> create_predictions(const std::filesystem::path& path,
                                                     std::vector<PredictedColumn> columns,
                                                     std::int64_t rows,
                                                     std::span<const KeptColumn> kept) {
  switch (format_of(path)) {
    case Format::kCsv:
      return std::make_unique<CsvWriter>(path, std::move(columns), kept);
    case Format::kParquet:
      return create_parquet_predictions(path, std::move(columns), kept);
    case Format::kSafetensors:
      if (!kept.empty()) {
        throw UsageError("--keep: a file of safetensors has numbers alone",
                         "end --out in .csv or .parquet");
      }
      return std::make_unique<SafetensorsPredictions>(path, columns, rows);
  }
  return nullptr;
}

}  // namespace troika
