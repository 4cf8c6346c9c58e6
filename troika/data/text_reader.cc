#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/data/sampler.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenizer.h>

#include <numeric>
#include <vector>

namespace troika {
namespace {

// The places of `count` things in this order.
std::vector<std::size_t> ordered(std::size_t count, TextOrder order) {
  std::vector<std::size_t> places(count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (order == TextOrder::kAsFound || count == 0) return places;
  const Permutation shuffled(stream_key(0, "data.tokenizer_training"),
                             static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = static_cast<std::size_t>(shuffled.at(0, static_cast<std::int64_t>(i)));
  }
  return places;
}

std::int64_t bytes_of(std::span<const FoundFile> files) {
  std::int64_t bytes = 0;
  for (const FoundFile& file : files) bytes += file.size;
  return bytes;
}

class FileTexts final : public TextReader {
 public:
  FileTexts(std::span<const FoundFile> files, TextOrder order) {
    for (const std::size_t place : ordered(files.size(), order)) files_.push_back(files[place]);
  }

  [[nodiscard]] std::optional<TextPart> next() override {
    if (file_ == files_.size()) return std::nullopt;
    const FoundFile& file = files_[file_];
    if (!open_) open_.emplace(file);
    TextPart part{file_, false, open_->text_at(offset_, kMaxPartBytes + 1)};
    part.text.resize(part_length(part.text));
    offset_ += static_cast<std::int64_t>(part.text.size());
    done_ += static_cast<std::int64_t>(part.text.size());
    part.last = offset_ == file.size;
    if (part.last) {
      open_.reset();
      offset_ = 0;
      ++file_;
    }
    return part;
  }
  [[nodiscard]] std::string describe(std::size_t document) const override {
    return shown_path(files_[document].path);
  }
  [[nodiscard]] std::int64_t done_bytes() const override { return done_; }
  [[nodiscard]] std::int64_t all_bytes() const override { return bytes_of(files_); }

 private:
  std::vector<FoundFile> files_;
  std::size_t file_ = 0;
  std::int64_t offset_ = 0, done_ = 0;
  std::optional<TextFile> open_;
};

class ColumnTexts final : public TextReader {
 public:
  ColumnTexts(std::span<const FoundFile> files, const std::string& column, TextOrder order)
      : tables_({files.begin(), files.end()}),
        column_(column),
        groups_(ordered(tables_.groups().size(), order)) {
    check_column();
  }

  [[nodiscard]] std::optional<TextPart> next() override {
    while (text_ == texts_.size()) {
      if (group_ == groups_.size()) return std::nullopt;
      decode(groups_[group_++]);
    }
    const std::string_view rest = std::string_view(texts_[text_]).substr(offset_);
    TextPart part{documents_, false, std::string(rest.substr(0, part_length(rest)))};
    offset_ += part.text.size();
    part.last = part.text.size() == rest.size();
    if (part.last) {
      offset_ = 0;
      ++documents_;
      std::string().swap(texts_[text_++]);
    }
    return part;
  }
  [[nodiscard]] std::string describe(std::size_t document) const override {
    return tables_.describe(rows_[document].group, rows_[document].row);
  }
  [[nodiscard]] std::int64_t done_bytes() const override {
    if (group_ == groups_.size() && text_ == texts_.size()) return all_bytes();
    return static_cast<std::int64_t>(static_cast<double>(all_bytes()) *
                                     static_cast<double>(group_ > 0 ? group_ - 1 : 0) /
                                     static_cast<double>(groups_.size()));
  }
  [[nodiscard]] std::int64_t all_bytes() const override { return bytes_of(tables_.files()); }

 private:
  struct Row {
    std::uint32_t group = 0, row = 0;
  };

  void check_column() const {
    const TableColumn& column = tables_.column(column_);
    if (column.type != ValueType::kText) {
      throw DataError("the column " + shown_path(column_) + " of " +
                          shown_path(tables_.files().front().path) + " is " + column.type_name +
                          ", and data.column names one of text",
                      tables_.columns_hint());
    }
    tables_.check_everywhere(column_);
  }

  void decode(std::size_t group) {
    texts_.clear();
    text_ = 0;
    const std::vector<std::string> columns = {column_};
    tables_.read(group, columns, [&](std::size_t, const Values& values) {
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const auto row = static_cast<std::size_t>(i);
        const auto begin = static_cast<std::size_t>(values.offsets[row]);
        const auto end = static_cast<std::size_t>(values.offsets[row + 1]);
        const bool is_there = values.there.empty() || values.there[row] != 0;
        if (!is_there || begin == end) continue;
        texts_.emplace_back(values.text.substr(begin, end - begin));
        rows_.push_back(
            {static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(values.first_row + i)});
      }
    });
  }

  TableFiles tables_;
  std::string column_;
  std::vector<std::size_t> groups_;
  std::size_t group_ = 0;  // that is decoded next
  std::vector<std::string> texts_;
  std::size_t text_ = 0, offset_ = 0, documents_ = 0;
  std::vector<Row> rows_;  // of each document
};

}  // namespace

std::unique_ptr<TextReader> read_text_files(std::span<const FoundFile> files, TextOrder order) {
  return std::make_unique<FileTexts>(files, order);
}

std::unique_ptr<TextReader> read_text_column(std::span<const FoundFile> files,
                                             const std::string& column, TextOrder order) {
  return std::make_unique<ColumnTexts>(files, column, order);
}

std::unique_ptr<TextReader> read_texts(std::span<const FoundFile> files, const std::string& column,
                                       TextOrder order) {
  return column.empty() ? read_text_files(files, order) : read_text_column(files, column, order);
}

FileSearch find_texts(std::span<const std::string> paths, const std::string& column) {
  if (column.empty()) return find_files(paths);
  FileSearch search;
  for (const std::string& path : paths) {
    search.files.push_back(find_table_files(std::span(&path, 1)));
  }
  return search;
}

}  // namespace troika
