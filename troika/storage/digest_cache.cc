#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/storage/digest_cache.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

// Behind it: keys and values, little-endian, the oldest first, and the hash of all before.
constexpr std::string_view kMagic = "TRKXXH64";
constexpr std::int64_t kSettleSeconds = 2;

// A SHA-256 is kept as four values of keys of their own, the quarters of its digits.
constexpr std::size_t kQuarters = 4, kQuarterDigits = 16;

// `quarter` is 0 for an XXH64, and that of a SHA-256, from 1, else.
std::uint64_t key_of(const fs::path& path, const struct stat& state, std::size_t quarter = 0) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  const FileIdentity identity(state);
  return content_hash(identity.file() + " " + identity.version() + " " +
                          (error ? path : whole).lexically_normal().native(),
                      quarter);
}

bool has_settled(const struct stat& state) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return state.st_mtim.tv_sec + kSettleSeconds < seconds;
}

}  // namespace

fs::path DigestCache::user_folder() {
  const auto named = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return fs::path(value == nullptr ? "" : value);
  };
  // The specification of these folders (XDG) has relative ones ignored.
  if (const fs::path cache = named("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "troika";
  if (const fs::path home = named("HOME"); home.is_absolute()) return home / ".cache" / "troika";
  return {};
}

DigestCache::DigestCache(fs::path folder) : folder_(std::move(folder)) {
  for (const Digest& each : read()) known_[each.key] = each.value;
}

fs::path DigestCache::file() const {
  return folder_ / "contents.xxh64";
}

std::vector<DigestCache::Digest> DigestCache::read() const {
  constexpr std::size_t kEach = 16, kAround = kMagic.size() + 8;
  std::vector<Digest> digests;
  if (folder_.empty()) return digests;
  try {
    const std::string text = read_file(file(), kAround + kMostFiles * kEach);
    if (text.size() < kAround || !text.starts_with(kMagic)) return digests;
    const std::string_view hashed = std::string_view(text).substr(0, text.size() - 8);
    ByteReader reader(bytes_of(text), file().string());
    (void)reader.take(kMagic.size());
    while (reader.remaining() >= kEach + 8) {
      const auto key = reader.read<std::uint64_t>();
      digests.push_back({key, reader.read<std::uint64_t>()});
    }
    if (reader.remaining() != 8 || reader.read<std::uint64_t>() != content_hash(hashed)) return {};
  } catch (const DataError&) {
    return {};  // there is none, or it is damaged
  }
  return digests;
}

std::optional<std::uint64_t> DigestCache::find(const fs::path& path,
                                               const struct stat& state) const {
  const auto found = known_.find(key_of(path, state));
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

void DigestCache::add(const fs::path& path, const struct stat& state, std::uint64_t digest) {
  if (folder_.empty() || !has_settled(state)) return;
  add_value(key_of(path, state), digest);
}

void DigestCache::add_value(std::uint64_t key, std::uint64_t value) {
  added_.push_back({key, value});
  known_[key] = value;
}

std::optional<std::string> DigestCache::find_sha256(const fs::path& path,
                                                    const struct stat& state) const {
  std::string digest;
  for (std::size_t quarter = 1; quarter <= kQuarters; ++quarter) {
    const auto found = known_.find(key_of(path, state, quarter));
    if (found == known_.end()) return std::nullopt;
    digest += hex(found->second);
  }
  return digest;
}

void DigestCache::add_sha256(const fs::path& path, const struct stat& state,
                             std::string_view digest) {
  if (folder_.empty() || !has_settled(state) || digest.size() != kQuarters * kQuarterDigits) return;
  std::array<std::uint64_t, kQuarters> values{};
  for (std::size_t i = 0; i < kQuarters; ++i) {
    const std::string_view digits = digest.substr(i * kQuarterDigits, kQuarterDigits);
    const char* const end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, values[i], 16).ptr != end) return;
  }
  for (std::size_t i = 0; i < kQuarters; ++i) add_value(key_of(path, state, i + 1), values[i]);
}

void DigestCache::save() {
  if (added_.empty()) return;
  std::vector<Digest> all = read();
  all.insert(all.end(), added_.begin(), added_.end());
  // From the newest on, each key once.
  std::unordered_set<std::uint64_t> keys;
  std::vector<Digest> kept;
  for (auto each = all.rbegin(); each != all.rend() && kept.size() < kMostFiles; ++each) {
    if (keys.insert(each->key).second) kept.push_back(*each);
  }
  ByteWriter writer;
  writer.write_text(kMagic);
  for (auto each = kept.rbegin(); each != kept.rend(); ++each) {
    writer.write(each->key);
    writer.write(each->value);
  }
  std::vector<std::byte> bytes = writer.release();
  ByteWriter end;
  end.write(content_hash(bytes));
  const std::vector<std::byte> hash = end.release();
  bytes.insert(bytes.end(), hash.begin(), hash.end());
  try {
    make_folders(folder_);
    write_file_atomically(file(), bytes);
  } catch (const StorageError&) {
    return;  // a cache that cannot be written saves nothing, and that is all
  }
  added_.clear();
}

}  // namespace troika
