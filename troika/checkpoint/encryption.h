// Files that are encrypted at rest, by libsodium's secretstream (XChaCha20-Poly1305):
//
//   "TROIKA CRYPT 1\n\0" (16 bytes), the key's id (8), the stream's header (24), then pieces of
//   kPlainChunk bytes, the last one shorter, each with 17 bytes of libsodium's. The last has the
//   tag that ends a stream.
//
// A changed byte, a piece that is gone and one that has come from elsewhere are all found. Nothing
// here needs LibTorch.
#pragma once

#include <troika/base/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The word for no key.
inline constexpr const char* kNoKey = "none";
// The environment variable that says where the key of files lies that no recipe comes with.
inline constexpr const char* kKeyVariable = "TROIKA_KEY";

// A secret of 256 bits. Copies share it; it is wiped with the last one.
class EncryptionKey {
 public:
  // Reads a key of 64 hexadecimal digits from "env:NAME" or "file:/PATH". Throws UsageError saying
  // where none is, never what is there.
  [[nodiscard]] static EncryptionKey read(const std::string& source);
  // Returns whether `source` has the form that read() takes.
  [[nodiscard]] static bool is_source(std::string_view source);

  // 16 hexadecimal digits that tell this key from others, and nothing of it.
  [[nodiscard]] const std::string& id() const { return secrets_->id; }
  // Returns 64 hexadecimal digits that only who has the key can compute of `text` (keyed BLAKE2b).
  [[nodiscard]] std::string authenticate(std::string_view text) const;

 private:
  friend class Encryptor;
  friend class DecryptedFile;
  static constexpr std::size_t kBytes = 32;
  struct Secrets {
    Secrets() = default;
    Secrets(const Secrets&) = delete;
    Secrets& operator=(const Secrets&) = delete;
    ~Secrets();

    std::string id;
    std::array<unsigned char, kBytes> stream = {}, authentication = {};  // derived
  };

  std::shared_ptr<const Secrets> secrets_;
};

// The keys that this process can read with: readers find them by their id, so that a run may go on
// from files of another key. Thread safe.
void remember_key(const EncryptionKey& key);
// Reads the key of a source and remembers it; returns nothing for kNoKey. `named_by` is what names
// the source, as "checkpoint.key", for messages. Throws as EncryptionKey::read().
[[nodiscard]] std::optional<EncryptionKey> key_from(const std::string& source,
                                                    const std::string& named_by);
// Tells that a file is encrypted with a key that is not given: it is not damaged.
class MissingKeyError : public DataError {
 public:
  using DataError::DataError;
};

// Returns the key of an id: one that was remembered, or the one that the environment variable
// TROIKA_KEY names. Throws MissingKeyError naming `source`, which needs it, and what names other
// keys.
[[nodiscard]] EncryptionKey key_of_id(const std::string& id, const std::string& source);

// Encrypts one stream, piece by piece. Not thread safe.
class Encryptor {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  // `sink` gets the bytes of the file, in order.
  Encryptor(const EncryptionKey& key, Sink sink);
  Encryptor(const Encryptor&) = delete;
  Encryptor& operator=(const Encryptor&) = delete;
  ~Encryptor();

  void write(std::span<const std::byte> bytes);
  // Ends the stream. Call it once, and write nothing afterwards.
  void finish();

  static constexpr std::size_t kPlainChunk = std::size_t{1} << 20;

 private:
  void push(unsigned char tag);

  struct State;
  std::unique_ptr<State> state_;
  Sink sink_;
  std::vector<std::byte> plain_, sealed_;  // one piece each
  std::size_t filled_ = 0;
};

// Returns whether a file is one of Encryptor's, by its first bytes.
[[nodiscard]] bool is_encrypted(std::span<const std::byte> file);

// The bytes that were written to an Encryptor, in memory.
class DecryptedFile {
 public:
  // Takes the key of its id. Throws DataError naming `source`: no such key, or not what was
  // written.
  DecryptedFile(std::span<const std::byte> file, const std::string& source);

  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

}  // namespace troika
