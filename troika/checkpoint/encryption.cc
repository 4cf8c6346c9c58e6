#include <sodium.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/encryption.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace troika {
namespace {

constexpr std::string_view kMagic{"TROIKA CRYPT 1\n\0", 16};
constexpr std::size_t kIdBytes = 8;
constexpr std::size_t kStreamHeader = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t kExtra = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::size_t kFileHeader = kMagic.size() + kIdBytes + kStreamHeader;
constexpr std::size_t kSealedChunk = Encryptor::kPlainChunk + kExtra;
constexpr std::string_view kVariable = "env:", kFile = "file:";
constexpr std::uint64_t kMaxKeyFile = 4096;

void start_sodium() {
  static const int state = sodium_init();
  check(state >= 0, "libsodium does not start");
}

const unsigned char* unsigned_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* unsigned_of(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

std::string hex_of(std::span<const unsigned char> bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

// The text behind a source.
std::string digits_of(const std::string& source) {
  if (source.starts_with(kFile)) return read_file(source.substr(kFile.size()), kMaxKeyFile);
  const std::string name = source.substr(kVariable.size());
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    throw UsageError("the environment variable " + name + ", which should hold a key, is not set",
                     "every rank needs it: 64 hexadecimal digits, as `openssl rand -hex 32` draws");
  }
  return value;
}

class KeyRing {
 public:
  void add(const EncryptionKey& key) {
    const std::scoped_lock lock(mutex_);
    keys_.insert_or_assign(key.id(), key);
  }
  [[nodiscard]] std::optional<EncryptionKey> find(const std::string& id) {
    const std::scoped_lock lock(mutex_);
    const auto found = keys_.find(id);
    return found == keys_.end() ? std::nullopt : std::optional(found->second);
  }
  // Keeps what a source has, for messages.
  void describe(const std::string& source, const std::string& what) {
    const std::scoped_lock lock(mutex_);
    sources_[source] = what;
  }
  // Returns "no key is given", or what the sources have.
  [[nodiscard]] std::string described() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> texts;
    for (const auto& [source, what] : sources_) {
      texts.push_back(source);
      texts.back().append(" ").append(what);
    }
    return texts.empty() ? "no key is given" : join(texts, "; ");
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> sources_;
  std::map<std::string, EncryptionKey> keys_;
};

KeyRing& key_ring() {
  static KeyRing ring;
  return ring;
}

}  // namespace

EncryptionKey::Secrets::~Secrets() {
  sodium_memzero(stream.data(), stream.size());
  sodium_memzero(authentication.data(), authentication.size());
}

bool EncryptionKey::is_source(std::string_view source) {
  // A relative path would be another one in another folder.
  return (source.starts_with(kVariable) && source.size() > kVariable.size()) ||
         source.starts_with(std::string(kFile) + "/");
}

EncryptionKey EncryptionKey::read(const std::string& source) {
  start_sodium();
  if (!is_source(source)) {
    throw UsageError(quote(source) + " names no key",
                     "write \"env:NAME\" for an environment variable, or \"file:/PATH\"");
  }
  std::string text = digits_of(source);
  std::array<unsigned char, kBytes> master = {};
  std::size_t length = text.size();
  while (length > 0 && std::string_view(" \t\r\n").find(text[length - 1]) != std::string::npos) {
    --length;
  }
  std::size_t count = 0;
  const char* end = nullptr;
  const bool is_hex = sodium_hex2bin(master.data(), master.size(), text.data(), length, nullptr,
                                     &count, &end) == 0 &&
                      end == text.data() + length && count == kBytes;
  sodium_memzero(text.data(), text.size());
  if (!is_hex) {
    throw UsageError(quote(source) + " does not hold a key: that is 64 hexadecimal digits",
                     "`openssl rand -hex 32` draws one");
  }
  const auto secrets = std::make_shared<Secrets>();
  std::array<unsigned char, crypto_kdf_BYTES_MIN> id = {};
  static_assert(kBytes == crypto_kdf_KEYBYTES);
  crypto_kdf_derive_from_key(id.data(), id.size(), 0, "troikaID", master.data());
  crypto_kdf_derive_from_key(secrets->stream.data(), kBytes, 1, "troikaFL", master.data());
  crypto_kdf_derive_from_key(secrets->authentication.data(), kBytes, 2, "troikaMF", master.data());
  sodium_memzero(master.data(), master.size());
  secrets->id = hex_of(std::span(id).first(kIdBytes));
  EncryptionKey key;
  key.secrets_ = secrets;
  return key;
}

std::string EncryptionKey::authenticate(std::string_view text) const {
  std::array<unsigned char, crypto_generichash_BYTES> code = {};
  crypto_generichash(code.data(), code.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), secrets_->authentication.data(), kBytes);
  return hex_of(code);
}

void remember_key(const EncryptionKey& key) {
  key_ring().add(key);
}

std::optional<EncryptionKey> key_from(const std::string& source, const std::string& named_by) {
  if (source == kNoKey) return std::nullopt;
  const std::string named = named_by + " = " + quote(source);
  try {
    EncryptionKey key = EncryptionKey::read(source);
    remember_key(key);
    key_ring().describe(named, "has the key " + key.id());
    return key;
  } catch (const Error& error) {
    key_ring().describe(named, "cannot be read: " + std::string(error.what()));
    throw;
  }
}

EncryptionKey key_of_id(const std::string& id, const std::string& source) {
  if (const auto key = key_ring().find(id)) return *key;
  const char* const place = std::getenv(kKeyVariable);
  if (place != nullptr && *place != '\0') {
    const std::optional<EncryptionKey> key = key_from(place, kKeyVariable);
    if (key && key->id() == id) return *key;
  }
  throw MissingKeyError(source + " is encrypted with the key " + id +
                            ", which is not given: " + key_ring().described(),
                        "set checkpoint.key in the recipe, or " + std::string(kKeyVariable) +
                            "=file:/PATH, to where that key lies");
}

struct Encryptor::State {
  crypto_secretstream_xchacha20poly1305_state stream;
};

Encryptor::Encryptor(const EncryptionKey& key, Sink sink)
    : state_(std::make_unique<State>()),
      sink_(std::move(sink)),
      plain_(kPlainChunk),
      sealed_(kSealedChunk) {
  std::vector<unsigned char> header(kFileHeader);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  sodium_hex2bin(header.data() + kMagic.size(), kIdBytes, key.id().data(), key.id().size(), nullptr,
                 nullptr, nullptr);
  crypto_secretstream_xchacha20poly1305_init_push(
      &state_->stream, header.data() + kMagic.size() + kIdBytes, key.secrets_->stream.data());
  sink_(std::as_bytes(std::span(header)));
}

Encryptor::~Encryptor() {
  sodium_memzero(&state_->stream, sizeof state_->stream);
}

void Encryptor::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A full piece waits for more: the last one has another tag.
    if (filled_ == kPlainChunk) push(crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
    const std::size_t count = std::min(bytes.size(), kPlainChunk - filled_);
    std::memcpy(plain_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
  }
}

void Encryptor::push(unsigned char tag) {
  unsigned long long length = 0;
  crypto_secretstream_xchacha20poly1305_push(&state_->stream, unsigned_of(std::span(sealed_)),
                                             &length, unsigned_of(std::span(plain_)), filled_,
                                             nullptr, 0, tag);
  sink_(std::span(sealed_).first(length));
  filled_ = 0;
}

void Encryptor::finish() {
  push(crypto_secretstream_xchacha20poly1305_TAG_FINAL);
}

bool is_encrypted(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

DecryptedFile::DecryptedFile(std::span<const std::byte> file, const std::string& source) {
  start_sodium();
  const auto fail = [&]() {
    throw DataError(source + " is damaged: it is not what was encrypted (truncated, or changed)",
                    "the checkpoint before it may be whole");
  };
  if (!is_encrypted(file) || file.size() < kFileHeader + kExtra) fail();
  const std::string id = hex_of({unsigned_of(file) + kMagic.size(), kIdBytes});
  const EncryptionKey key = key_of_id(id, source);
  crypto_secretstream_xchacha20poly1305_state stream;
  if (crypto_secretstream_xchacha20poly1305_init_pull(&stream,
                                                      unsigned_of(file) + kMagic.size() + kIdBytes,
                                                      key.secrets_->stream.data()) != 0) {
    fail();
  }
  file = file.subspan(kFileHeader);
  const std::size_t pieces = (file.size() + kSealedChunk - 1) / kSealedChunk;
  if (file.size() < pieces * kExtra) fail();
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(file.size() - pieces * kExtra);
  while (!file.empty()) {
    const std::span<const std::byte> piece = file.first(std::min(file.size(), kSealedChunk));
    unsigned long long length = 0;
    unsigned char tag = 0;
    if (piece.size() < kExtra ||
        crypto_secretstream_xchacha20poly1305_pull(
            &stream, reinterpret_cast<unsigned char*>(bytes_.get() + size_), &length, &tag,
            unsigned_of(piece), piece.size(), nullptr, 0) != 0) {
      fail();
    }
    size_ += length;
    file = file.subspan(piece.size());
    const bool is_last = tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL;
    if (is_last != file.empty()) fail();
  }
  sodium_memzero(&stream, sizeof stream);
}

}  // namespace troika
