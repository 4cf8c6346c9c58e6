#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/data/find_files.h>
#include <troika/data/prepare.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenize_texts.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <system_error>

namespace troika {
namespace {

namespace fs = std::filesystem;

// Enough for the statistics of some 100,000 pieces; SentencePiece needs about ten times that of
// memory.
constexpr std::int64_t kTrainingBytes = std::int64_t{64} << 20;

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void check_options(const PrepareOptions& options) {
  if (options.shard_tokens < 1) throw UsageError("the tokens of a shard must be at least 1");
  if (options.paths.empty()) throw UsageError("no data files are named", "add paths or globs");
  if (options.train_vocab_size < 0 || options.train_vocab_size > (std::int64_t{1} << 24)) {
    throw UsageError(
        "a vocabulary of " + std::to_string(options.train_vocab_size) + " ids cannot be trained",
        "choose at most 16,777,216; 8,000 to 100,000 are usual");
  }
  if (options.train_vocab_size > 0 && options.tokenizer != "bytes") {
    throw UsageError("a tokenizer is either loaded or trained",
                     "leave out one of --tokenizer and --train-tokenizer");
  }
  if (options.train_vocab_size > 0 && options.columns.chat_template) {
    throw UsageError("a trained tokenizer has no control tokens, which conversations need",
                     "--tokenizer names that of the model");
  }
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.out, error)) &&
      !(fs::is_directory(options.out, error) && fs::is_empty(options.out, error))) {
    throw UsageError(shown_path(options.out) + " is there already and not an empty folder",
                     "choose another folder, or remove it first");
  }
}

// A folder under a temporary name that takes its place as a whole, or is removed.
class PartialFolder {
 public:
  explicit PartialFolder(const fs::path& target) : target_(without_trailing_slash(target)) {
    if (target_.has_parent_path()) make_folders(target_.parent_path());
    std::random_device entropy;
    path_ = target_.parent_path() / (".tmp-" + hex(std::uint64_t{entropy()} << 32 | entropy()));
    std::error_code error;
    fs::create_directory(path_, error);
    if (error) throw_storage_error("make the folder", target_, error.value());
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] const fs::path& target() const { return target_; }

  void commit() {
    sync_folder(path_);
    // Replaces an empty folder, fails on any other.
    if (std::rename(path_.c_str(), target_.c_str()) != 0) {
      throw_storage_error("make the folder", target_, errno);
    }
    path_.clear();
    sync_folder(target_.parent_path());
  }

 private:
  fs::path target_;
  fs::path path_;
};

// Documents into as many shards as they need. A document is never cut.
class ShardSeries {
 public:
  ShardSeries(fs::path folder, const Tokenizer& tokenizer, bool separator_is_target,
              std::int64_t shard_tokens)
      : folder_(std::move(folder)),
        shard_tokens_(static_cast<std::uint64_t>(shard_tokens)),
        header_(header_for(tokenizer, separator_is_target)) {}

  void add_tokens(std::span<const std::int32_t> ids, std::span<const char> are_targets) {
    if (ids.empty()) return;
    if (!shard_) open();
    shard_->add_tokens(ids, are_targets);
    document_tokens_ += ids.size();
  }
  // A document that gave no tokens is left out.
  void end_document(std::uint64_t key, std::int64_t text_bytes) {
    if (document_tokens_ == 0) return;
    shard_->end_document(key, static_cast<std::uint64_t>(text_bytes));
    ++documents_;
    tokens_ += static_cast<std::int64_t>(document_tokens_);
    document_tokens_ = 0;
    if (shard_->tokens() >= shard_tokens_) close();
  }
  void close() {
    if (!shard_) return;
    shard_->finish();
    shard_.reset();
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  void open() {
    const std::string number = std::to_string(names_.size());
    const std::string zeros(5 - std::min<std::size_t>(5, number.size()), '0');
    names_.push_back("shard-" + zeros + number + ".tokens");
    shard_.emplace(folder_ / names_.back(), header_);
  }

  fs::path folder_;
  std::uint64_t shard_tokens_;
  TokenShardHeader header_;
  std::optional<ShardWriter> shard_;
  std::vector<std::string> names_;
  std::uint64_t document_tokens_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
};

std::vector<FoundFile> all_files(const FileSearch& search) {
  std::vector<FoundFile> all;
  for (const std::vector<FoundFile>& files : search.files) {
    all.insert(all.end(), files.begin(), files.end());
  }
  std::sort(all.begin(), all.end(),
            [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
  return all;
}

struct ChosenTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  TokenizerFiles files;  // empty for bytes

  [[nodiscard]] const char* name() const {
    return files.is_json() ? kTokenizerJson : kTokenizerFile;
  }
  void write_to(const fs::path& folder) const {
    if (files.model.empty()) return;
    write_file_atomically(folder / name(), files.model);
    if (!files.config.empty()) write_file_atomically(folder / kTokenizerConfig, files.config);
  }
};

ChosenTokenizer choose_tokenizer(const PrepareOptions& options, std::span<const FoundFile> files) {
  const bool train = options.train_vocab_size > 0;
  if (!train && options.tokenizer == "bytes") return {open_tokenizer(options.tokenizer), {}};
  TokenizerFiles chosen;
  if (train) {
    auto texts = read_texts(files, options.columns, TextOrder::kShuffled);
    chosen.source = "the trained model";
    chosen.model = train_sentencepiece(training_lines(std::move(texts), kTrainingBytes),
                                       options.train_vocab_size);
  } else {
    chosen = read_tokenizer(options.tokenizer);
  }
  auto tokenizer = load_tokenizer(chosen);
  return {std::move(tokenizer), std::move(chosen)};
}

// What was read, and what is to be said of it; empty where there is nothing.
struct ShardedText {
  std::int64_t bytes = 0;
  std::string warning;
};

ShardedText write_shards(TextReader& reader, const Tokenizer& tokenizer, ShardSeries& shards,
                         const PrepareProgress& progress) {
  if (progress) progress(0, reader.all_bytes());
  NotUtf8 not_utf8;
  ShardedText text;
  tokenize_texts(reader, tokenizer, [&](const TokenizedPart& part) {
    not_utf8.add(part);
    shards.add_tokens(part.ids, part.are_targets);
    if (part.last) shards.end_document(part.key, part.document_bytes);
    text.bytes += static_cast<std::int64_t>(part.text_bytes);
    if (progress) progress(reader.done_bytes(), reader.all_bytes());
  });
  shards.close();
  if (progress) progress(reader.all_bytes(), reader.all_bytes());
  text.warning = not_utf8.describe(reader);
  return text;
}

}  // namespace

PrepareReport prepare_tokens(const PrepareOptions& options, const PrepareProgress& progress) {
  check_options(options);
  const FileSearch search = find_texts(options.paths, options.columns);
  const std::vector<FoundFile> files = all_files(search);
  const ChosenTokenizer chosen = choose_tokenizer(options, files);
  if (options.columns.chat_template) {
    check_chat_tokenizer(*options.columns.chat_template, *chosen.tokenizer, options.tokenizer);
  }
  PartialFolder folder(options.out);
  chosen.write_to(folder.path());
  const std::unique_ptr<TextReader> reader = read_texts(files, options.columns);
  ShardSeries shards(folder.path(), *chosen.tokenizer, reader->separator_is_target(),
                     options.shard_tokens);
  const ShardedText text = write_shards(*reader, *chosen.tokenizer, shards, progress);
  if (shards.tokens() == 0) throw DataError("the data files give no tokens");

  PrepareReport report;
  // Bytes are taken as they are.
  if (!chosen.files.model.empty() && !text.warning.empty()) report.warnings.push_back(text.warning);
  if (!search.left_out.empty()) report.warnings.push_back(describe_left_out(search));
  report.documents = shards.documents();
  report.stands_apart = !reader->separator_is_target();
  report.tokens = shards.tokens();
  report.vocab_size = chosen.tokenizer->vocab_size();
  report.text_bytes = text.bytes;
  for (const std::string& name : shards.names()) report.shards.push_back(folder.target() / name);
  if (!chosen.files.model.empty()) report.tokenizer = folder.target() / chosen.name();
  folder.commit();
  return report;
}

}  // namespace troika
