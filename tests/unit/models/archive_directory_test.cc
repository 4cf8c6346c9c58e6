#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/archive_directory.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/file.h>

#include <algorithm>

#include "support/script_file.h"
#include "support/temporary_folder.h"

namespace troika {
namespace {

using ::testing::HasSubstr;

TEST(ArchiveDirectory, ListsTheRecordsOfAScript) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "net.pt";
  test::write_script(path);
  const MappedFile file(path);
  ASSERT_TRUE(is_archive(file.bytes()));
  const auto records = read_archive_directory(file.bytes(), "'net.pt'");
  const auto first = std::ranges::find(records, "net/data/0", &ArchiveRecord::name);
  ASSERT_NE(first, records.end());
  EXPECT_NE(first->crc32, 0);
  EXPECT_GT(first->size, 0);
  EXPECT_NE(std::ranges::find(records, "net/data.pkl", &ArchiveRecord::name), records.end());
  EXPECT_FALSE(is_archive(bytes_of("PK")));
  EXPECT_FALSE(is_archive(bytes_of("")));
}

// An archive with the sizes of one beyond 4 GB, and a comment behind it.
std::string large_archive() {
  ByteWriter out;
  out.write_text("PK\x03\x04");
  const std::uint64_t directory = out.bytes().size();
  out.write_text("PK\x01\x02");
  out.pad_to(20);
  out.write<std::uint32_t>(0x12345678);
  out.write<std::uint32_t>(0xFFFFFFFF);
  out.write<std::uint32_t>(0xFFFFFFFF);
  out.write<std::uint16_t>(6);   // of the name
  out.write<std::uint16_t>(26);  // of the extra fields
  out.write<std::uint16_t>(0);
  for (int i = 0; i < 3; ++i) out.write<std::uint32_t>(0);
  out.write_text("n/data");
  out.write<std::uint16_t>(0x5455);  // of another kind
  out.write<std::uint16_t>(2);
  out.write<std::uint16_t>(0);
  out.write<std::uint16_t>(0x0001);
  out.write<std::uint16_t>(16);
  out.write<std::uint64_t>(5'000'000'000);
  out.write<std::uint64_t>(5'000'000'000);
  const std::uint64_t end64 = out.bytes().size();
  out.write_text("PK\x06\x06");
  out.write<std::uint64_t>(44);
  for (int i = 0; i < 3; ++i) out.write<std::uint32_t>(0);
  out.write<std::uint64_t>(1);
  out.write<std::uint64_t>(1);
  out.write<std::uint64_t>(end64 - directory);
  out.write<std::uint64_t>(directory);
  out.write_text("PK\x06\x07");
  out.write<std::uint32_t>(0);
  out.write<std::uint64_t>(end64);
  out.write<std::uint32_t>(1);
  out.write_text("PK\x05\x06");
  out.write<std::uint32_t>(0);
  out.write<std::uint32_t>(0xFFFFFFFF);
  out.write<std::uint32_t>(0xFFFFFFFF);
  out.write<std::uint32_t>(0xFFFFFFFF);
  out.write<std::uint16_t>(7);
  out.write_text("comment");
  return std::string(text_of(out.bytes()));
}

TEST(ArchiveDirectory, HasSizesOf64Bits) {
  const auto records = read_archive_directory(bytes_of(large_archive()), "file");
  ASSERT_EQ(records.size(), 1);
  EXPECT_EQ(records[0].name, "n/data");
  EXPECT_EQ(records[0].size, 5'000'000'000);
  EXPECT_EQ(records[0].crc32, 0x12345678);
}

// Every cut and every damaged byte is an error, or other records: never an access out of bounds.
TEST(ArchiveDirectory, IsCheckedBeforeUse) {
  const std::string whole = large_archive();
  for (std::size_t size = 0; size < whole.size() - 7; ++size) {
    EXPECT_THROW((void)read_archive_directory(bytes_of(whole.substr(0, size)), "file"), DataError)
        << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\0', '\x7F', '\xFF'}) {
      std::string damaged = whole;
      damaged[at] = value;
      try {
        (void)read_archive_directory(bytes_of(damaged), "file");
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr("file"));
      }
    }
  }
}

}  // namespace
}  // namespace troika
