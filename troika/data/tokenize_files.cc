#include <ATen/Parallel.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/data/sampler.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/data/tokenize_files.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>

namespace troika {
namespace {

// A second or so of SentencePiece: how long a caller waits between two reports.
constexpr std::size_t kBatchBytesPerThread = std::size_t{1} << 20;
constexpr std::size_t kMaxLineBytes = 4096;

// Reads files part by part, in order.
class PartReader {
 public:
  struct Part {
    std::size_t file = 0;
    bool last = false;
    std::string text;
  };

  explicit PartReader(std::span<const FoundFile> files) : files_(files) {}

  std::optional<Part> next() {
    if (file_ == files_.size()) return std::nullopt;
    const FoundFile& file = files_[file_];
    if (!open_) open_.emplace(file);
    Part part{file_, false, open_->text_at(offset_, kMaxPartBytes + 1)};
    part.text.resize(part_length(part.text));
    offset_ += static_cast<std::int64_t>(part.text.size());
    part.last = offset_ == file.size;
    if (part.last) {
      open_.reset();
      offset_ = 0;
      ++file_;
    }
    return part;
  }

 private:
  std::span<const FoundFile> files_;
  std::size_t file_ = 0;
  std::int64_t offset_ = 0;
  std::optional<TextFile> open_;
};

// Threads take one part after the other, because parts differ in size.
void encode(const Tokenizer& tokenizer, std::span<const std::string> texts,
            std::span<TokenizedPart> parts) {
  std::atomic<std::size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t i = next++; i < texts.size(); i = next++) {
      parts[i].ids = tokenizer.encode(texts[i]);
      parts[i].not_utf8 = count_not_utf8(texts[i]);
    }
  });
}

}  // namespace

void tokenize_files(std::span<const FoundFile> files, const Tokenizer& tokenizer,
                    const std::function<void(const TokenizedPart&)>& sink) {
  const std::size_t batch_bytes =
      kBatchBytesPerThread * static_cast<std::size_t>(at::get_num_threads());
  PartReader reader(files);
  std::vector<std::string> texts;
  std::vector<TokenizedPart> parts;
  std::size_t bytes = 0;
  const auto flush = [&] {
    encode(tokenizer, texts, parts);
    for (const TokenizedPart& part : parts) sink(part);
    texts.clear();
    parts.clear();
    bytes = 0;
  };
  while (std::optional<PartReader::Part> part = reader.next()) {
    bytes += part->text.size();
    parts.push_back({part->file, part->last, part->text.size(), 0, {}});
    texts.push_back(std::move(part->text));
    if (bytes >= batch_bytes) flush();
  }
  flush();
}

std::string NotUtf8::describe(std::span<const FoundFile> files) const {
  if (bytes_ == 0) return "";
  return plural(static_cast<std::int64_t>(bytes_), "byte") + " of " +
         plural(static_cast<std::int64_t>(files_.size()), "data file") +
         (bytes_ == 1 ? " is" : " are") + " no UTF-8, which the tokenizer reads as U+FFFD; " +
         shown_path(files[*files_.begin()].path) +
         " is the first: `iconv -f latin1 -t utf8` may mend it";
}

LineReader training_lines(std::span<const FoundFile> files, std::int64_t max_bytes) {
  struct State {
    std::vector<FoundFile> files;
    std::optional<PartReader> reader;
    std::string text;
    std::size_t position = 0;
    std::int64_t left;
  };
  const auto state = std::make_shared<State>();
  state->left = max_bytes;
  const auto count = static_cast<std::int64_t>(files.size());
  if (count > 0) {
    const Permutation order(stream_key(0, "data.tokenizer_training"), count);
    for (std::int64_t i = 0; i < count; ++i) {
      state->files.push_back(files[static_cast<std::size_t>(order.at(0, i))]);
    }
  }
  state->reader.emplace(state->files);
  return [state]() -> std::optional<std::string> {
    while (state->left > 0) {
      if (state->position == state->text.size()) {
        std::optional<PartReader::Part> part = state->reader->next();
        if (!part) return std::nullopt;
        state->text = std::move(part->text);
        state->position = 0;
      }
      const std::string_view rest = std::string_view(state->text).substr(state->position);
      const std::size_t line_end = std::min(rest.find('\n'), rest.size());
      const std::size_t length = part_length(rest.substr(0, line_end), kMaxLineBytes);
      // The line end itself goes too, once the line is used up.
      state->position += length < line_end ? length : std::min(line_end + 1, rest.size());
      if (length == 0) continue;
      state->left -= static_cast<std::int64_t>(length);
      return std::string(rest.substr(0, length));
    }
    return std::nullopt;
  };
}

}  // namespace troika
