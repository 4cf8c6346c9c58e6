#include <gmock/gmock.h>
#include <signal.h>
#include <support/temporary_folder.h>
#include <sys/resource.h>
#include <troika/base/error.h>
#include <troika/observe/append_file.h>

namespace troika {
namespace {

using testing::HasSubstr;

// Files of this process may not grow beyond `bytes` in this scope: the kernel then writes what fits
// and fails with EFBIG, as a disk that fills up does with ENOSPC.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(AppendFile, AppendsRecords) {
  const TemporaryFolder folder;
  AppendFile file(folder / "a", AppendFile::Mode::kTruncate);
  file.append("one\n");
  EXPECT_EQ(read_file(folder / "a", 100), "one\n");
  file.append("two\n");
  file.sync();
  EXPECT_EQ(read_file(folder / "a", 100), "one\ntwo\n");
}

TEST(AppendFile, TruncateStartsEmpty) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old\n");
  AppendFile file(folder / "a", AppendFile::Mode::kTruncate);
  EXPECT_EQ(read_file(folder / "a", 100), "");
}

TEST(AppendFile, KeepsCompleteLinesOnly) {
  const TemporaryFolder folder;
  for (const std::string& kept :
       {std::string(), std::string("one\n"), std::string(9000, 'x') + "\n"}) {
    for (const std::string& torn : {std::string(), std::string("ha"), std::string(5000, 'y')}) {
      write_file_atomically(folder / "a", kept + torn);
      AppendFile file(folder / "a", AppendFile::Mode::kKeepLines);
      file.append("next\n");
      EXPECT_EQ(read_file(folder / "a", 100000), kept + "next\n");
    }
  }
}

TEST(AppendFile, RecordThatDoesNotFitLeavesNothing) {
  const TemporaryFolder folder;
  AppendFile file(folder / "metrics.jsonl", AppendFile::Mode::kTruncate);
  file.append("0123456789\n");
  {
    const FileSizeLimit limit(16);  // half of the next record fits
    try {
      file.append("abcdefghij\n");
      ADD_FAILURE() << "no error";
    } catch (const StorageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("metrics.jsonl"));
      EXPECT_THAT(error.what(), HasSubstr("File too large"));
    }
    EXPECT_EQ(read_file(folder / "metrics.jsonl", 100), "0123456789\n");
  }
  file.append("again\n");  // once there is room
  EXPECT_EQ(read_file(folder / "metrics.jsonl", 100), "0123456789\nagain\n");
}

TEST(AppendFile, FullDiskNamesTheFile) {
  AppendFile file("/dev/full", AppendFile::Mode::kTruncate);
  try {
    file.append("x\n");
    ADD_FAILURE() << "no error";
  } catch (const StorageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/dev/full"));
    EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
    EXPECT_THAT(error.hint(), HasSubstr("free some space"));
  }
}

TEST(AppendFile, MissingFolderIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(AppendFile(folder / "no/such/file", AppendFile::Mode::kTruncate), StorageError);
}

}  // namespace
}  // namespace troika
