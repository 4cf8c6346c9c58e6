#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/encryption.h>
#include <troika/checkpoint/safetensors.h>

#include <cstdlib>
#include <functional>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string problem_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* kDigits = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

class Encryption : public testing::Test {
 protected:
  [[nodiscard]] EncryptionKey key(const std::string& digits = kDigits) const {
    write_file_atomically(folder_ / "key", digits);
    return EncryptionKey::read("file:" + (folder_ / "key").string());
  }
  static std::vector<std::byte> encrypted(const EncryptionKey& key, std::size_t size) {
    std::vector<std::byte> file;
    Encryptor encryptor(key, [&](std::span<const std::byte> bytes) {
      file.insert(file.end(), bytes.begin(), bytes.end());
    });
    const std::vector<std::byte> plain = plain_of(size);
    encryptor.write(std::span(plain).first(size / 3));
    encryptor.write(std::span(plain).subspan(size / 3));
    encryptor.finish();
    return file;
  }
  static std::vector<std::byte> plain_of(std::size_t size) {
    std::vector<std::byte> plain(size);
    for (std::size_t i = 0; i < size; ++i) plain[i] = static_cast<std::byte>(i * 7 + i / 256);
    return plain;
  }

  TemporaryFolder folder_;
};

TEST_F(Encryption, GivesBackWhatWasWritten) {
  remember_key(key());
  constexpr std::size_t kPiece = Encryptor::kPlainChunk;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kPiece - 1, kPiece, kPiece + 1,
                                 2 * kPiece, 3 * kPiece + 5}) {
    const std::vector<std::byte> file = encrypted(key(), size);
    ASSERT_TRUE(is_encrypted(file));
    const DecryptedFile read(file, "it");
    EXPECT_EQ(std::vector(read.bytes().begin(), read.bytes().end()), plain_of(size));
  }
}

TEST_F(Encryption, TwoOfTheSameHaveNothingInCommon) {
  const auto one = encrypted(key(), 100), two = encrypted(key(), 100);
  EXPECT_FALSE(std::equal(one.begin() + 24, one.end(), two.begin() + 24));
  const std::string_view text(reinterpret_cast<const char*>(one.data()), one.size());
  const auto plain = plain_of(100);
  EXPECT_EQ(text.find({reinterpret_cast<const char*>(plain.data()), 8}), std::string_view::npos);
}

TEST_F(Encryption, FindsEveryByteThatHasChanged) {
  remember_key(key());
  const auto file = encrypted(key(), 300);
  for (std::size_t i = 0; i < file.size(); ++i) {
    auto changed = file;
    changed[i] ^= std::byte{4};
    EXPECT_THROW(DecryptedFile(changed, "it"), DataError) << i;
    EXPECT_THROW(DecryptedFile(std::span(file).first(i), "it"), DataError) << i;
  }
  auto longer = file;
  longer.push_back({});
  EXPECT_THROW(DecryptedFile(longer, "it"), DataError);
}

TEST_F(Encryption, FindsPiecesThatAreGoneOrElsewhere) {
  remember_key(key());
  constexpr std::size_t kPiece = Encryptor::kPlainChunk + 17, kHeader = 48;
  const auto file = encrypted(key(), 3 * Encryptor::kPlainChunk);
  ASSERT_EQ(file.size(), kHeader + 3 * kPiece);
  auto shorter = file;
  shorter.resize(kHeader + 2 * kPiece);
  EXPECT_THROW(DecryptedFile(shorter, "it"), DataError);
  auto swapped = file;
  std::swap_ranges(swapped.begin() + kHeader, swapped.begin() + kHeader + kPiece,
                   swapped.begin() + kHeader + kPiece);
  EXPECT_THROW(DecryptedFile(swapped, "it"), DataError);
}

// However little of an encrypted file is left, it is not taken for a plain one.
TEST_F(Encryption, KnowsATruncatedFile) {
  remember_key(key());
  constexpr std::size_t kMagic = 16;
  const auto file = encrypted(key(), 100);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto left = std::span(file).first(size);
    EXPECT_EQ(is_encrypted(left), size >= kMagic) << size;
    EXPECT_THROW(DecryptedFile(left, "it"), DataError) << size;
  }
}

TEST_F(Encryption, NamesTheKeyThatIsNotThere) {
  const EncryptionKey unknown = key(std::string(64, 'e'));
  const auto file = encrypted(unknown, 10);
  EXPECT_THAT(problem_of([&] { (void)DecryptedFile(file, "'x'"); }),
              AllOf(HasSubstr("'x' is encrypted with the key " + unknown.id()),
                    Not(HasSubstr("eeeeeeee"))));
}

TEST_F(Encryption, ReadsKeys) {
  EXPECT_EQ(key(std::string(kDigits) + "\n").id(), key().id());
  EXPECT_NE(key(std::string(64, '1')).id(), key().id());
  ASSERT_EQ(setenv("TROIKA_TEST_KEY", kDigits, 1), 0);
  EXPECT_EQ(EncryptionKey::read("env:TROIKA_TEST_KEY").id(), key().id());
  for (const std::string& wrong :
       std::vector<std::string>{"", "00", "zz", std::string(63, '1'), std::string(65, '1')}) {
    EXPECT_THAT(problem_of([&] { (void)key(wrong); }),
                HasSubstr("does not hold a key: that is 64 hexadecimal digits"));
  }
  EXPECT_THAT(problem_of([] { (void)EncryptionKey::read("env:TROIKA_NO_SUCH_KEY"); }),
              HasSubstr("TROIKA_NO_SUCH_KEY, which should hold a key, is not set"));
  EXPECT_THROW((void)EncryptionKey::read("file:/nowhere/key"), DataError);
  EXPECT_THROW((void)EncryptionKey::read(kDigits), UsageError);
}

TEST_F(Encryption, OfSafetensors) {
  const EncryptionKey own = key();
  remember_key(own);
  const auto path = folder_ / "m.safetensors";
  const std::vector<std::byte> values = plain_of(3 << 20);
  Sha256 hash;
  {
    SafetensorsWriter writer(path, {{.name = "w", .type = DataType::kU8, .shape = {3 << 20}}}, {},
                             {.hash = &hash, .key = own});
    writer.write(values);
    writer.commit();
    EXPECT_EQ(writer.bytes(), std::filesystem::file_size(path));
  }
  const std::string text = read_file(path, 1 << 30);
  EXPECT_EQ(hash.digest(), sha256(std::as_bytes(std::span(text))));
  EXPECT_THAT(text, Not(HasSubstr("dtype")));
  const SafetensorsFile file(path);
  EXPECT_TRUE(std::ranges::equal(file.data(file.at("w")), values));
}

// The manifest is readable, and whoever changes it is found.
TEST_F(Encryption, AuthenticatesManifests) {
  const EncryptionKey own = key();
  remember_key(own);
  const CheckpointFolder checkpoints(folder_ / "checkpoints", own);
  make_folders(checkpoints.step_folder(3));
  Manifest manifest;
  manifest.step = 3;
  manifest.numbers["tokens"] = std::int64_t{7};
  manifest.numbers["seconds"] = 0.1;
  checkpoints.commit(manifest);
  Manifest forged = checkpoints.read(3);
  EXPECT_EQ(forged.key_id, own.id());
  const auto file = checkpoints.step_folder(3) / "manifest.json";
  forged.numbers["tokens"] = std::int64_t{8};
  write_file_atomically(file, format_manifest(forged));
  EXPECT_THAT(problem_of([&] { (void)checkpoints.read(3); }),
              HasSubstr("it has been changed since its key authenticated it"));
}

}  // namespace
}  // namespace troika
