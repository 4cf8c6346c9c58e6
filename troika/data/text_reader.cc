#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/data/chat/conversations.h>
#include <troika/data/sampler.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenizer.h>

#include <numeric>
#include <set>
#include <vector>

namespace troika {
namespace {

// The positions of `count` things in this order.
std::vector<std::size_t> ordered(std::size_t count, TextOrder order) {
  std::vector<std::size_t> positions(count);
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  if (order == TextOrder::kAsFound || count == 0) return positions;
  const Permutation shuffled(stream_key(0, "data.tokenizer_training"),
                             static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    positions[i] = static_cast<std::size_t>(shuffled.at(0, static_cast<std::int64_t>(i)));
  }
  return positions;
}

std::int64_t bytes_of(std::span<const FoundFile> files) {
  std::int64_t bytes = 0;
  for (const FoundFile& file : files) bytes += file.size;
  return bytes;
}

class FileTexts final : public TextReader {
 public:
  FileTexts(std::span<const FoundFile> files, TextOrder order)
      : files_(files.begin(), files.end()), order_(ordered(files.size(), order)) {}

  [[nodiscard]] std::optional<TextPart> next() override {
    if (file_ == files_.size()) return std::nullopt;
    const FoundFile& file = files_[order_[file_]];
    if (!open_) open_.emplace(file);
    TextPart part{file_, false, false, open_->text_at(offset_, kMaxPartBytes + 1), {}};
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
  [[nodiscard]] std::uint64_t position(std::size_t document) const override {
    return order_[document];
  }
  [[nodiscard]] std::string describe_position(std::uint64_t position) const override {
    return shown_path(files_[position].path);
  }
  [[nodiscard]] std::int64_t done_bytes() const override { return done_; }
  [[nodiscard]] std::int64_t all_bytes() const override { return bytes_of(files_); }

 private:
  std::vector<FoundFile> files_;
  std::vector<std::size_t> order_;
  std::size_t file_ = 0;  // in that order
  std::int64_t offset_ = 0, done_ = 0;
  std::optional<TextFile> open_;
};

// Texts are text, whatever they look like.
TextFormat format_for(const TextColumns& columns) {
  TextFormat format;
  for (const auto* const each : {&columns.text, &columns.prompt}) {
    if (!each->empty()) format.types.push_back({*each, ValueType::kText});
  }
  return format;
}

class ColumnTexts final : public TextReader {
 public:
  ColumnTexts(std::span<const FoundFile> files, const TextColumns& columns, TextOrder order)
      : chat_template_(columns.chat_template),
        tables_({files.begin(), files.end()}, format_for(columns)),
        groups_(ordered(tables_.groups().size(), order)) {
    for (const auto* const each : {&columns.text, &columns.prompt}) {
      if (each->empty()) continue;
      check_column(*each);
      columns_.push_back(*each);
    }
  }

  [[nodiscard]] std::optional<TextPart> next() override {
    while (text_ == texts_.size()) {
      if (group_ == groups_.size()) return std::nullopt;
      decode(groups_[group_++]);
    }
    if (chat_template_) return next_rendered();
    Text& text = texts_[text_];
    const bool is_prompt = offset_ < text.prompt;
    const std::string_view whole(text.both);
    const std::string_view rest =
        is_prompt ? whole.substr(offset_, text.prompt - offset_) : whole.substr(offset_);
    TextPart part{documents_, false, is_prompt, std::string(rest.substr(0, part_length(rest))), {}};
    offset_ += part.text.size();
    part.last = offset_ == whole.size();
    if (part.last) {
      offset_ = 0;
      ++documents_;
      ++text_;
      std::string().swap(text.both);
    }
    return part;
  }
  [[nodiscard]] bool separator_is_target() const override { return !chat_template_; }
  [[nodiscard]] std::uint64_t position(std::size_t document) const override {
    return rows_[document];
  }
  [[nodiscard]] std::string describe_position(std::uint64_t position) const override {
    return tables_.describe(static_cast<std::size_t>(position >> kRowBits),
                            static_cast<std::int64_t>(position & ((1ULL << kRowBits) - 1)));
  }
  [[nodiscard]] std::int64_t done_bytes() const override {
    if (group_ == groups_.size() && text_ == texts_.size()) return all_bytes();
    return static_cast<std::int64_t>(static_cast<double>(all_bytes()) *
                                     static_cast<double>(group_ > 0 ? group_ - 1 : 0) /
                                     static_cast<double>(groups_.size()));
  }
  [[nodiscard]] std::int64_t all_bytes() const override { return bytes_of(tables_.files()); }

 private:
  static constexpr int kRowBits = 32;
  struct Text {
    std::string both;        // the prompt, and behind it the text
    std::size_t prompt = 0;  // bytes
  };

  // A conversation is one part.
  TextPart next_rendered() {
    TextPart part{documents_++, true, false, std::move(texts_[text_++].both), {}};
    try {
      part.spans = spans_of_rendered(*chat_template_, part.text);
    } catch (const DataError& error) {
      throw DataError(describe(part.document) + ": " + error.what(), error.hint());
    }
    return part;
  }

  void check_column(const std::string& name) const {
    const TableColumn& column = tables_.column(name);
    if (column.type != ValueType::kText) {
      throw DataError("the column " + shown_path(name) + " of " +
                          shown_path(tables_.files().front().path) + " is " + column.type_name +
                          ", and documents are made of text",
                      tables_.columns_hint());
    }
    tables_.check_everywhere(name);
  }

  void decode(std::size_t group) {
    std::vector<std::string> read[2];
    for (auto& each : read) each.resize(static_cast<std::size_t>(tables_.groups()[group].rows));
    tables_.read(group, columns_, [&](std::size_t column, const Values& values) {
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const auto row = static_cast<std::size_t>(i);
        if (!values.there.empty() && values.there[row] == 0) continue;
        const auto begin = static_cast<std::size_t>(values.offsets[row]);
        const auto end = static_cast<std::size_t>(values.offsets[row + 1]);
        read[column][static_cast<std::size_t>(values.first_row + i)] =
            values.text.substr(begin, end - begin);
      }
    });
    texts_.clear();
    text_ = 0;
    for (std::size_t row = 0; row < read[0].size(); ++row) {
      if (read[0][row].empty()) continue;
      texts_.push_back({read[1][row] + read[0][row], read[1][row].size()});
      rows_.push_back(std::uint64_t{group} << kRowBits | row);
    }
  }

  std::optional<ChatTemplate> chat_template_;
  TableFiles tables_;
  std::vector<std::string> columns_;  // the text, and the prompt where there is one
  std::vector<std::size_t> groups_;
  std::size_t group_ = 0;  // that is decoded next
  std::vector<Text> texts_;
  std::size_t text_ = 0, offset_ = 0, documents_ = 0;
  std::vector<std::uint64_t> rows_;  // the position of each document: its row group and row
};

}  // namespace

std::unique_ptr<TextReader> read_text_files(std::span<const FoundFile> files, TextOrder order) {
  return std::make_unique<FileTexts>(files, order);
}

std::unique_ptr<TextReader> read_text_columns(std::span<const FoundFile> files,
                                              const TextColumns& columns, TextOrder order) {
  return std::make_unique<ColumnTexts>(files, columns, order);
}

std::unique_ptr<TextReader> read_texts(std::span<const FoundFile> files, const TextColumns& columns,
                                       TextOrder order) {
  if (!columns.messages.empty()) {
    check(columns.chat_template.has_value(), "conversations without a template");
    return read_conversations(files, columns.messages, *columns.chat_template,
                              ordered(files.size(), order));
  }
  return columns.text.empty() ? read_text_files(files, order)
                              : read_text_columns(files, columns, order);
}

FileSearch find_texts(std::span<const std::string> paths, const TextColumns& columns,
                      const GoesOn& goes_on) {
  if (!columns.are_rows()) return find_files(paths, goes_on);
  FileSearch search;
  std::set<std::string> known;
  for (const std::string& path : paths) {
    if (goes_on) goes_on();
    std::vector<FoundFile>& files = search.files.emplace_back();
    for (FoundFile& file : search_tables(std::span(&path, 1), format_for(columns)).files) {
      if (known.insert(identity_of(file)).second) files.push_back(std::move(file));
    }
    if (!files.empty()) continue;
    throw DataError("all files of " + shown_path(path) + " are those of paths before it",
                    "take it out, or name other files");
  }
  return search;
}

}  // namespace troika
