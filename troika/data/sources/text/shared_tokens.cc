#include <fcntl.h>
#include <sys/stat.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/data/sources/text/shared_tokens.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/tokenize_texts.h>
#include <troika/observe/log.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <system_error>
#include <utility>

namespace troika {
namespace {

// A file in the folder for temporary files that goes with this process, however that ends.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::random_device entropy;
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) {
      throw StorageError("there is no folder for temporary files: " + error.message(),
                         "TMPDIR names one");
    }
    path_ = std::filesystem::absolute(folder) /
            ("troika-" + hex(std::uint64_t{entropy()} << 32 | entropy()) + ".tokens");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { remove(); }

  // Removes the name of the file, once it has been made: a process that is killed then leaves
  // nothing. Other processes of this user reach the file by the descriptor. Without /proc the name
  // stays until the end.
  void remove_name() {
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    const std::string by_descriptor =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_.get());
    struct stat status {};
    if (!fd_.valid() || ::stat(by_descriptor.c_str(), &status) != 0) return;
    remove();
    path_ = by_descriptor;
    has_name_ = false;
  }
  // Returns the path by which this process, and others, open it.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void remove() const {
    std::error_code ignored;
    if (has_name_) std::filesystem::remove(path_, ignored);
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  bool has_name_ = true;
};

// A shard that one rank has written, as the others of its host hear of it.
struct WrittenShard {
  std::string path;      // empty: no text has a token
  std::string identity;  // FileIdentity::file()
  std::vector<std::uint64_t> positions;
  std::string warning;
};

template <Scalar T>
void write_values(ByteWriter& writer, std::span<const T> values) {
  writer.write(static_cast<std::uint64_t>(values.size()));
  for (const T each : values) writer.write(each);
}

template <Scalar T>
std::vector<T> read_values(ByteReader& reader) {
  std::vector<T> values;
  for (auto count = reader.read<std::uint64_t>(); count > 0; --count) {
    values.push_back(reader.read<T>());
  }
  return values;
}

std::string read_text(ByteReader& reader) {
  const auto text = read_values<char>(reader);
  return {text.begin(), text.end()};
}

std::string encode_shard(const WrittenShard& shard) {
  ByteWriter writer;
  write_values(writer, std::span<const char>(shard.path));
  write_values(writer, std::span<const char>(shard.identity));
  write_values(writer, std::span<const std::uint64_t>(shard.positions));
  write_values(writer, std::span<const char>(shard.warning));
  return std::string(text_of(writer.bytes()));
}

WrittenShard decode_shard(std::string_view text) {
  ByteReader reader(bytes_of(text), "the tokens of another rank");
  WrittenShard shard;
  shard.path = read_text(reader);
  shard.identity = read_text(reader);
  shard.positions = read_values<std::uint64_t>(reader);
  shard.warning = read_text(reader);
  return shard;
}

WrittenShard write_shard(TemporaryFile& file, TextReader& reader, const Tokenizer& tokenizer,
                         Tokenless tokenless, const GoesOn& goes_on) {
  ShardWriter shard(file.path(), header_for(tokenizer, reader.separator_is_target()));
  file.remove_name();
  WrittenShard written;
  NotUtf8 not_utf8;
  std::uint64_t before = 0;
  tokenize_texts(reader, tokenizer, [&](const TokenizedPart& part) {
    goes_on();
    not_utf8.add(part);
    shard.add_tokens(part.ids, part.are_targets);
    if (!part.last) return;
    if (tokenless == Tokenless::kLeftOut && shard.tokens() == before) return;
    shard.end_document(part.key, static_cast<std::uint64_t>(part.document_bytes));
    written.positions.push_back(reader.position(part.document));
    before = shard.tokens();
  });
  written.warning = not_utf8.describe(reader);
  if (before == 0) return written;
  shard.finish();
  const auto identity = FileIdentity::of(file.path());
  if (!identity) throw_storage_error("read", file.path(), errno);
  written.path = file.path().string();
  written.identity = identity->file();
  return written;
}

// Returns null where this rank does not see the very file that another has written.
std::unique_ptr<DocumentSource> open_shard(const WrittenShard& shard) {
  const auto found = FileIdentity::of(shard.path);
  if (!found || found->file() != shard.identity) return nullptr;
  const FoundFile file{shard.path, static_cast<std::int64_t>(found->size)};
  return open_token_documents(std::span(&file, 1));
}

}  // namespace

TokenisedTexts tokenise_once(HostWork& host, const OpenReader& open, const Tokenizer& tokenizer,
                             Tokenless tokenless, Room room) {
  std::optional<TemporaryFile> own;  // until all have opened it
  WrittenShard shard = decode_shard(host.once("tokens of the text", [&](const auto& goes_on) {
    const std::unique_ptr<TextReader> reader = open();
    try {
      return encode_shard(write_shard(own.emplace(), *reader, tokenizer, tokenless, goes_on));
    } catch (const StorageError& error) {
      if (room == Room::kIsNeeded) throw;
      log_warning(std::string(error.what()) + ": each rank tokenises the text for itself");
      return encode_shard({});
    }
  }));
  TokenisedTexts texts;
  if (!shard.path.empty()) {
    texts.tokens = open_shard(shard);
    host.wait_for_all("tokens of the text are open");
    if (!texts.tokens) {
      OwnWork alone;
      return tokenise_once(alone, open, tokenizer, tokenless, room);
    }
  }
  texts.positions = std::move(shard.positions);
  texts.warning = std::move(shard.warning);
  return texts;
}

}  // namespace troika
