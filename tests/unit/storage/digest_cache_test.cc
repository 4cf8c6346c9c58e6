// Hashes that outlive a process, and what is left of them in a damaged file.
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/storage/digest_cache.h>

#include <string>

namespace troika {
namespace {

class Cache : public ::testing::Test {
 protected:
  Cache() {
    state_.st_ino = 5;
    state_.st_size = 100;
    state_.st_mtim = {1'000'000, 1};
  }
  [[nodiscard]] std::filesystem::path file() const { return folder_ / "troika/contents.xxh64"; }
  [[nodiscard]] DigestCache open() const { return DigestCache(folder_ / "troika"); }
  void keep(std::uint64_t digest, const char* path = "/a") {
    DigestCache cache = open();
    cache.add(path, state_, digest);
    cache.save();
  }

  TemporaryFolder folder_;
  struct stat state_ {};
};

TEST_F(Cache, KnowsAFileUntilAnythingOfItChanges) {
  keep(7);
  EXPECT_EQ(open().find("/a", state_), 7U);
  EXPECT_EQ(open().find("/b", state_), std::nullopt);
  for (const auto change :
       {+[](struct stat& s) { ++s.st_size; }, +[](struct stat& s) { ++s.st_ino; },
        +[](struct stat& s) { ++s.st_dev; }, +[](struct stat& s) { ++s.st_mtim.tv_nsec; },
        +[](struct stat& s) { ++s.st_mtim.tv_sec; }}) {
    struct stat other = state_;
    change(other);
    EXPECT_EQ(open().find("/a", other), std::nullopt);
  }
}

TEST_F(Cache, HasBothHashesOfAFile) {
  const std::string digest = "0123456789abcdef00000000000000000000000000000001fedcba9876543210";
  DigestCache cache = open();
  cache.add("/a", state_, 7);
  cache.add_sha256("/a", state_, digest);
  cache.add_sha256("/b", state_, digest.substr(1));
  cache.add_sha256("/c", state_, digest.substr(1) + "g");
  cache.save();
  EXPECT_EQ(open().find("/a", state_), 7U);
  EXPECT_EQ(open().find_sha256("/a", state_), digest);
  for (const char* const other : {"/b", "/c"}) {
    EXPECT_EQ(open().find_sha256(other, state_), std::nullopt) << other;
    EXPECT_EQ(open().find(other, state_), std::nullopt) << other;
  }
  ++state_.st_size;
  EXPECT_EQ(open().find_sha256("/a", state_), std::nullopt);
}

TEST_F(Cache, KeepsWhatOthersHaveWritten) {
  DigestCache slow = open();
  keep(1, "/a");
  slow.add("/b", state_, 2);
  slow.save();
  keep(3, "/a");
  EXPECT_EQ(open().find("/a", state_), 3U);
  EXPECT_EQ(open().find("/b", state_), 2U);
}

// It may change once more within the same tick of the file system's clock.
TEST_F(Cache, DoesNotRememberAFileThatHasJustChanged) {
  state_.st_mtim.tv_sec = ::time(nullptr);
  keep(7);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(Cache, IsEmptyWhereItIsDamaged) {
  keep(7);
  const std::string whole = read_file(file(), 1000);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 16);
    write_file_atomically(file(), damaged);
    EXPECT_EQ(open().find("/a", state_), std::nullopt) << i;
    write_file_atomically(file(), whole.substr(0, i));
    EXPECT_EQ(open().find("/a", state_), std::nullopt) << i;
  }
  keep(8);
  EXPECT_EQ(open().find("/a", state_), 8U);
}

TEST_F(Cache, DoesWithoutAFolder) {
  DigestCache none{std::filesystem::path()};
  none.add("/a", state_, 7);
  none.save();
  write_file_atomically(folder_ / "taken", "");
  DigestCache cannot(folder_ / "taken");
  cannot.add("/a", state_, 7);
  cannot.save();
  EXPECT_EQ(cannot.find("/a", state_), 7U);
}

}  // namespace
}  // namespace troika
