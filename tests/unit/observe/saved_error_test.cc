#include <gtest/gtest.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>

#include <exception>

#include "support/temporary_folder.h"

namespace troika {
namespace {

TEST(SavedError, IsFoundByWhoeverKnowsTheFolder) {
  const TemporaryFolder folder;
  save_error(folder.path(), 3, PeerError("rank 1\nis late", "look there"));
  const auto found = read_saved_error(folder.path(), 3);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->failure.message, "rank 1\nis late");
  EXPECT_EQ(found->failure.hint, "look there");
  EXPECT_EQ(found->failure.code, ExitCode::kRendezvous);
  EXPECT_TRUE(found->failure.secondary);
  EXPECT_FALSE(read_saved_error(folder.path(), 2));
  remove_saved_error(folder.path(), 3);
  EXPECT_FALSE(read_saved_error(folder.path(), 3));
}

std::exception_ptr peer_error(const char* text) {
  return std::make_exception_ptr(PeerError(text));
}

TEST(SavedError, OfARecorderIsTheFirstOfItsOperations) {
  const TemporaryFolder folder;
  const auto path = recorder_path(folder.path(), 0);
  save_error(folder.path(), 0, PeerError("of an earlier job"));
  const auto recorder = Recorder::create(path, 0, "here");
  EXPECT_FALSE(read_saved_error(folder.path(), 0));
  recorder->record_error(std::make_exception_ptr(UsageError("is the program's own")));
  EXPECT_FALSE(read_saved_error(folder.path(), 0));
  recorder->record_error(peer_error("first"));
  OperationRecord(recorder.get(), 1, {}).record_error(peer_error("second"));
  EXPECT_EQ(read_saved_error(folder.path(), 0)->failure.message, "first");
  EXPECT_EQ(read_saved_error(folder.path(), 0)->failure.hint, "");
  Recorder::none()->record_error(peer_error("in memory"));
}

TEST(SavedError, WithoutAFolderNothingHappens) {
  const TemporaryFolder folder;
  save_error("", 0, PeerError("x"));
  save_error(folder.path() / "missing", 0, PeerError("x"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace troika
