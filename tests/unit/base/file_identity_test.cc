// The very same file, a copy of it, and the same file after a change.
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>

#include <chrono>
#include <filesystem>

namespace troika {
namespace {

namespace fs = std::filesystem;

TEST(FileIdentity, IsOfTheFileBehindALinkAndNotOfACopy) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "one");
  fs::create_symlink(folder / "a", folder / "link");
  fs::copy_file(folder / "a", folder / "copy");
  const auto file = FileIdentity::of(folder / "a"), link = FileIdentity::of(folder / "link");
  EXPECT_EQ(link->file(), file->file());
  EXPECT_EQ(link->version(), file->version());
  EXPECT_NE(FileIdentity::of(folder / "copy")->file(), file->file());
  EXPECT_FALSE(FileIdentity::of(folder / "none"));
  EXPECT_FALSE(FileIdentity::of(""));
}

TEST(FileIdentity, HasAnotherVersionOnceItChanges) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a";
  write_file_atomically(path, "one");
  const auto before = FileIdentity::of(path);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::nanoseconds(1000));
  const auto later = FileIdentity::of(path);
  EXPECT_EQ(later->file(), before->file());
  EXPECT_NE(later->version(), before->version());
  fs::resize_file(path, 2);
  fs::last_write_time(path, fs::last_write_time(path));
  EXPECT_NE(FileIdentity::of(path)->version(), later->version());
}

}  // namespace
}  // namespace troika
