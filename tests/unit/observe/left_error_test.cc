#include <gtest/gtest.h>
#include <troika/observe/left_error.h>

#include <chrono>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using FileClock = std::filesystem::file_time_type::clock;

TEST(LeftError, IsFoundByWhoeverKnowsTheFolder) {
  const TemporaryFolder folder;
  const auto before = FileClock::now() - std::chrono::seconds(1);
  leave_error(folder.path(), 3, PeerError("rank 1\nis late", "look there"));
  const auto found = left_error(folder.path(), 3, before);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->message, "rank 1 is late");
  EXPECT_EQ(found->hint, "look there");
  EXPECT_FALSE(left_error(folder.path(), 2, before));
  leave_error(folder.path(), 3, PeerError("another"));
  EXPECT_EQ(left_error(folder.path(), 3, before)->message, "another");
  EXPECT_EQ(left_error(folder.path(), 3, before)->hint, "");
}

TEST(LeftError, OfAnEarlierJobIsNone) {
  const TemporaryFolder folder;
  leave_error(folder.path(), 0, PeerError("rank 1 is late"));
  EXPECT_FALSE(left_error(folder.path(), 0, FileClock::now() + std::chrono::seconds(1)));
}

TEST(LeftError, WithoutAFolderNothingHappens) {
  const TemporaryFolder folder;
  leave_error("", 0, PeerError("x"));
  leave_error(folder.path() / "missing", 0, PeerError("x"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace troika
