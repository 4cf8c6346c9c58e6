// Blocks of remote files on this host's disk.
#include <gtest/gtest.h>
#include <troika/base/file.h>
#include <troika/storage/block_cache.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace troika::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> block_of(std::size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& each : fs::recursive_directory_iterator(folder)) {
    if (each.is_regular_file()) files.push_back(each.path());
  }
  return files;
}

class Blocks : public testing::Test {
 protected:
  [[nodiscard]] bool has(const BlockCache& cache, std::string_view file, std::int64_t block,
                         const std::vector<std::byte>& wanted, std::size_t offset = 0) const {
    std::vector<std::byte> found(wanted.size() - offset);
    if (!cache.read(file, block, offset, found)) return false;
    EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted.begin() + static_cast<long>(offset)));
    return true;
  }

  TemporaryFolder temporary_;
  fs::path folder_ = temporary_.path() / "some" / "cache";
  std::vector<std::byte> one_ = block_of(1000, 1), other_ = block_of(1000, 2);
};

TEST_F(Blocks, AreThereForEachProcessOfTheHost) {
  const BlockCache cache(folder_, 1 << 20), of_another_rank(folder_, 1 << 20);
  EXPECT_FALSE(has(cache, "a", 0, one_));
  cache.put("a", 0, one_);
  cache.put("a", 1, other_);
  for (const BlockCache* each : {&cache, &of_another_rank}) {
    EXPECT_TRUE(has(*each, "a", 0, one_));
    EXPECT_TRUE(has(*each, "a", 1, other_, 999));
    EXPECT_FALSE(has(*each, "a", 2, one_));
    EXPECT_FALSE(has(*each, "another content of a", 0, one_));
  }
  EXPECT_EQ(files_in(folder_).size(), 2U);  // nothing half-written
}

TEST_F(Blocks, DoNotCountWhereTheyAreDamagedOrCutOff) {
  BlockCache(folder_, 1 << 20).put("a", 0, one_);
  const fs::path file = files_in(folder_).front();
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(500);
    stream.put('x');
  }
  EXPECT_FALSE(has(BlockCache(folder_, 1 << 20), "a", 0, one_));
  BlockCache(folder_, 1 << 20).put("a", 0, one_);  // takes its place
  EXPECT_TRUE(has(BlockCache(folder_, 1 << 20), "a", 0, one_));
  fs::resize_file(file, 3);
  EXPECT_FALSE(has(BlockCache(folder_, 1 << 20), "a", 0, one_));
}

TEST_F(Blocks, GoWhereTheyAreTooMany) {
  constexpr std::uint64_t kMost = 20'000;
  const BlockCache cache(folder_, kMost);
  for (int block = 0; block < 100; ++block) {
    cache.put("a", block, block_of(1000, block));
    std::uint64_t bytes = 0;
    for (const fs::path& each : files_in(folder_)) bytes += fs::file_size(each);
    EXPECT_LE(bytes, kMost + kMost / 16 + 1008);
  }
  EXPECT_TRUE(has(cache, "a", 99, block_of(1000, 99)));
  EXPECT_FALSE(has(cache, "a", 0, block_of(1000, 0)));
}

// The folder is the user's, who may have named one with other files in it.
TEST_F(Blocks, LeaveFilesThatAreNoBlocks) {
  const std::string digits(32, '6');
  const std::vector<fs::path> others = {
      folder_ / "notes.txt",
      folder_ / "thesis" / "results.bin",
      folder_ / "66" / "mine.txt",
      folder_ / "66" / (digits + "-0.txt"),
      folder_ / "66" / (digits + "-x"),
      folder_ / "66" / digits,
      folder_ / "67" / (digits + "-0"),
      folder_ / "6e" / "a" / (digits + "-0"),
      folder_ / "66" / (digits + "-0.9-1.tmp")};  // being written by another process
  for (const fs::path& each : others) {
    fs::create_directories(each.parent_path());
    write_file_atomically(each, std::string(30'000, 'x'));
    if (each.extension() != ".tmp") {
      fs::last_write_time(each, fs::file_time_type::clock::now() - std::chrono::hours(1000));
    }
  }
  const fs::path left = folder_ / "66" / (digits + "-1.9-2.tmp");
  write_file_atomically(left, std::string(30'000, 'x'));
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(1000));
  const BlockCache cache(folder_, 20'000);
  for (int block = 0; block < 100; ++block) cache.put("a", block, block_of(1000, block));
  for (const fs::path& each : others) EXPECT_TRUE(fs::exists(each)) << each;
  EXPECT_FALSE(fs::exists(left)) << "the process that wrote it has ended";
  EXPECT_TRUE(has(cache, "a", 99, block_of(1000, 99)));
  EXPECT_FALSE(has(cache, "a", 0, block_of(1000, 0)));
}

TEST_F(Blocks, CostNothingWhereTheyCannotBeKept) {
  write_file_atomically(temporary_.path() / "file", "no folder");
  const BlockCache cache(temporary_.path() / "file", 1 << 20);
  cache.put("a", 0, one_);
  EXPECT_FALSE(has(cache, "a", 0, one_));
}

}  // namespace
}  // namespace troika::test
