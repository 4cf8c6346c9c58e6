// Hashes of the contents of data files, in the background.
#include <troika/base/hash.h>
#include <troika/data/content_digests.h>
#include <troika/storage/digest_cache.h>
#include <unit/data/support.h>

#include <chrono>

namespace troika {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Contents : public ::testing::Test {
 protected:
  DataFile file(const std::string& name, const std::string& text) {
    const fs::path path = write_file(folder_ / name, text);
    // It has been there for a while: newer ones are not cached.
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
    return {path.string(), static_cast<std::int64_t>(text.size()), 0};
  }
  [[nodiscard]] DataListing listing(const std::vector<DataFile>& files) const {
    ContentDigests digests(files, {.cache = folder_ / "cache"});
    EXPECT_TRUE(digests.wait(Deadline::in(Seconds(60))));
    return digests.listing();
  }
  TemporaryFolder folder_;
};

TEST_F(Contents, FindsTheLastBitOfTheLastFile) {
  std::string text(200'000, 'x');
  const std::vector<DataFile> files = {file("a", "small"), file("b", text)};
  const DataListing before = listing(files);
  text.back() = static_cast<char>(text.back() ^ 1);
  (void)file("b", text);
  const DataListing now = listing(files);
  EXPECT_EQ(now.difference_from(before.summary(), before.excerpt(now.summary())),
            "'" + files[1].path + "' (file 2 of 2) has other contents");
}

TEST_F(Contents, DiffersWhereAFileCannotBeRead) {
  const std::vector<DataFile> files = {file("a", "one"), file("b", "two")};
  const DataListing before = listing(files);
  fs::remove(folder_ / "a");
  const DataListing now = listing(files);
  EXPECT_THAT(now.difference_from(before.summary(), before.excerpt(now.summary())),
              HasSubstr("file 1 of 2"));
  (void)file("a", "longer");
  EXPECT_NE(listing(files).summary(), before.summary());
}

TEST_F(Contents, LeavesAnObjectStoreAlone) {
  EXPECT_EQ(listing({{"s3://bucket/a", 1, 0}}).summary(),
            listing({{"s3://bucket/a", 1, 0}}).summary());
}

TEST_F(Contents, HasFilesThatSamplesName) {
  const std::vector<DataFile> files = {file("table", "small")}, named = {file("image", "one")};
  const auto listing = [&] {
    ContentDigests digests(files, {.more = [&](const std::stop_token&) { return named; }});
    EXPECT_TRUE(digests.wait(Deadline::in(Seconds(60))));
    return digests.listing();
  };
  const DataListing before = listing();
  (void)file("image", "two");
  const DataListing now = listing();
  EXPECT_EQ(now.difference_from(before.summary(), before.excerpt(now.summary())),
            "'" + named[0].path + "' (file 2 of 2) has other contents");
  // What cannot be read is another thing than what has been read.
  ContentDigests broken(files, {.more = [](const std::stop_token&) -> std::vector<DataFile> {
                          throw DataError("'table' is damaged");
                        }});
  EXPECT_TRUE(broken.wait(Deadline::in(Seconds(60))));
  EXPECT_NE(broken.listing().summary(), now.summary());
}

// What is in the cache is not read.
TEST_F(Contents, TakesFromTheCacheWhatHasNotChanged) {
  const std::vector<DataFile> files = {file("a", "one")};
  const DataListing before = listing(files);
  struct stat state {};
  ASSERT_EQ(::stat(files[0].path.c_str(), &state), 0);
  DigestCache cache(folder_ / "cache");
  EXPECT_EQ(cache.find(files[0].path, state), content_hash("one"));
  cache.add(files[0].path, state, 7);
  cache.save();
  EXPECT_NE(listing(files).summary(), before.summary());
  const auto changed = fs::file_time_type::clock::now() - std::chrono::minutes(1);
  fs::last_write_time(files[0].path, changed);
  EXPECT_EQ(listing(files).summary(), before.summary());
}

// A run that is stopped in a large file goes on behind the parts that it has hashed.
TEST_F(Contents, OfALargeFileAreKeptInParts) {
  std::string text(2500, 'x');
  const std::vector<DataFile> files = {file("a", text)};
  const auto in_parts = [&] {
    ContentDigests digests(files, {.part_bytes = 1000, .cache = folder_ / "cache"});
    EXPECT_TRUE(digests.wait(Deadline::in(Seconds(60))));
    return digests.listing().summary();
  };
  const std::string before = in_parts();
  struct stat state {};
  ASSERT_EQ(::stat(files[0].path.c_str(), &state), 0);
  DigestCache cache(folder_ / "cache");
  const std::string part = files[0].path + "\n";
  EXPECT_EQ(cache.find(part + "0", state), content_hash(text.substr(0, 1000)));
  EXPECT_EQ(cache.find(part + "2", state), content_hash(text.substr(2000)));
  EXPECT_EQ(cache.find(files[0].path, state), std::nullopt);
  cache.add(part + "1", state, 7);  // it is not read again
  cache.save();
  EXPECT_NE(in_parts(), before);
  text[1500] = 'y';
  (void)file("a", text);
  fs::remove_all(folder_ / "cache");
  EXPECT_NE(in_parts(), before);
}

// At a rate of 1 KiB a second this would take hours.
TEST_F(Contents, StopsInTheMiddleOfAFile) {
  const std::vector<DataFile> files = {file("a", std::string(8 << 20, 'x'))};
  ContentDigests digests(files, {.rate = 1024});
  EXPECT_FALSE(digests.wait(Deadline::in(Seconds(0.05))));
  EXPECT_THROW((void)digests.listing(), InternalError);
}

TEST_F(Contents, TellCopiesFromTheFilesThemselves) {
  const std::vector<DataFile> files = {file("a", "one")}, copies = {file("b", "one")};
  fs::create_symlink(folder_ / "a", folder_ / "link");
  EXPECT_NE(identity_of_files(files), identity_of_files(copies));
  const std::vector<DataFile> linked = {{(folder_ / "link").string(), 3, 0}};
  EXPECT_EQ(identity_of_files(files), identity_of_files(linked));
  // One copy among them is enough, whichever it is.
  const std::vector<DataFile> all = {files[0], file("c", "two"), file("d", "three")};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<DataFile> mixed = all;
    mixed[i] = copies[0];
    EXPECT_NE(identity_of_files(all), identity_of_files(mixed)) << i;
  }
}

}  // namespace
}  // namespace troika
