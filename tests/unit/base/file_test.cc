#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "no such error";
}

TEST(MappedFile, ShowsTheBytes) {
  TemporaryFolder folder;
  write_file_atomically(folder / "data", "some bytes");
  MappedFile file(folder / "data");
  EXPECT_EQ(text_of(file.bytes()), "some bytes");
  EXPECT_EQ(file.path(), folder / "data");

  MappedFile moved = std::move(file);
  // NOLINTNEXTLINE(bugprone-use-after-move): a mapping given away is an empty one
  EXPECT_EQ(file.size(), 0U);
  EXPECT_EQ(text_of(moved.bytes()), "some bytes");
  // A mapping outlives the name.
  std::filesystem::remove(folder / "data");
  EXPECT_EQ(text_of(moved.bytes()), "some bytes");
}

TEST(MappedFile, AcceptsAnEmptyFile) {
  TemporaryFolder folder;
  write_file_atomically(folder / "empty", "");
  EXPECT_EQ(MappedFile(folder / "empty").size(), 0U);
}

TEST(MappedFile, NamesWhatCannotBeRead) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto open = [](const std::filesystem::path& path) {
    return message_of<DataError>([&] { MappedFile file(path); });
  };
  EXPECT_THAT(open(folder / "absent"), HasSubstr((folder / "absent").string() + "': No such file"));
  EXPECT_THAT(open(folder.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(open(folder / "pipe"), HasSubstr("not a regular file"));  // and does not wait
  EXPECT_THAT(open("/dev/null"), HasSubstr("not a regular file"));
  EXPECT_THAT(open(folder / "two\nlines"), HasSubstr("two\\nlines"));
}

TEST(ReadFile, ReadsUpToItsLimit) {
  TemporaryFolder folder;
  const std::string content(200000, 'x');
  write_file_atomically(folder / "data", content);
  EXPECT_EQ(read_file(folder / "data", 200000), content);
  EXPECT_THAT(message_of<DataError>([&] { static_cast<void>(read_file(folder / "data", 199999)); }),
              HasSubstr("longer than 195.3 KiB"));
  EXPECT_THROW(static_cast<void>(read_file(folder / "absent", 1)), DataError);
}

TEST(ReadFile, ReadsFilesWhoseSizeTheKernelDoesNotState) {
  EXPECT_THAT(read_file("/proc/self/status", 1 << 20), HasSubstr("VmRSS"));
}

TEST(WriteFileAtomically, ReplacesAndLeavesNothingBeside) {
  TemporaryFolder folder;
  write_file_atomically(folder / "data", "first");
  write_file_atomically(folder / "data", "second");
  EXPECT_EQ(read_file(folder / "data", 100), "second");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("data"));
}

TEST(WriteFileAtomically, GivesTheUsualPermissions) {
  TemporaryFolder folder;
  const mode_t before = ::umask(022);
  write_file_atomically(folder / "data", "x");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "data").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644U);
}

TEST(AtomicFile, ShowsNothingBeforeTheCommit) {
  TemporaryFolder folder;
  write_file_atomically(folder / "data", "old");
  AtomicFile file(folder / "data");
  file.write("ne");
  file.write("w");
  EXPECT_EQ(read_file(folder / "data", 100), "old");
  file.commit();
  EXPECT_EQ(read_file(folder / "data", 100), "new");
  EXPECT_THROW(file.commit(), InternalError);
}

TEST(AtomicFile, WritesAtAPlace) {
  TemporaryFolder folder;
  AtomicFile file(folder / "data");
  file.write("ab");
  file.write_at(4, std::as_bytes(std::span("ef", 2)));
  file.write("cd");
  file.commit();
  EXPECT_EQ(read_file(folder / "data", 100), "abcdef");
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Pieces that end before, at and behind the places where the disk is told to begin.
TEST(AtomicFile, HoldsLargePiecesOfAnySize) {
  const TemporaryFolder folder;
  std::string text(19 * kMiB + 5, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  for (const std::size_t piece : {kMiB - 3, kMiB, 8 * kMiB, 9 * kMiB + 1, text.size()}) {
    AtomicFile file(folder / "data");
    for (std::size_t begin = 0; begin < text.size(); begin += piece) {
      file.write(std::string_view(text).substr(begin, piece));
    }
    file.commit();
    EXPECT_TRUE(read_file(folder / "data", 20 * kMiB) == text) << piece;
  }
}

// What the page cache holds of a file (linux/mman.h of newer systems).
struct CachedPages {
  std::uint64_t cached, dirty, under_way, evicted, recently_evicted;
};

std::optional<CachedPages> cached_pages(const std::filesystem::path& path) {
  constexpr long kCacheStat = 451;
  struct {
    std::uint64_t begin = 0, length = 0;
  } all;
  CachedPages pages{};
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (::syscall(kCacheStat, fd.get(), &all, &pages, 0) != 0) return std::nullopt;
  return pages;
}

// In the folder of the test, for one in memory has no disk.
TEST(AtomicFile, HasTheDiskBeginBeforeTheCommit) {
  const std::filesystem::path folder = "atomic-file-" + std::to_string(::getpid());
  make_folders(folder);
  const std::string text(kMiB, 'x');
  for (const std::size_t calls : {1, 8, 64}) {  // for 8 MiB
    AtomicFile file(folder / "data");
    for (std::size_t i = 0; i < 4 * calls; ++i) {
      for (std::size_t k = 0; k < std::max<std::size_t>(8 / calls, 1); ++k) {
        file.write(std::string_view(text).substr(0, std::min(kMiB, 8 * kMiB / calls)));
      }
    }
    const auto pages = cached_pages(folder / names_in(folder).front());
    if (pages && pages->cached > 0) {
      EXPECT_LT(pages->dirty, pages->cached / 2) << calls;
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(AtomicFile, RemovesTheTemporaryFileWhenAbandoned) {
  TemporaryFolder folder;
  {
    AtomicFile file(folder / "data");
    file.write("half");
    EXPECT_EQ(names_in(folder.path()).size(), 1U);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, NamesAMissingFolder) {
  TemporaryFolder folder;
  EXPECT_THAT(message_of<StorageError>([&] { AtomicFile file(folder / "absent/data"); }),
              testing::AllOf(HasSubstr("absent/data"), HasSubstr("its folder does not exist")));
}

TEST(AtomicFile, CleansUpWhenTheTargetIsAFolder) {
  TemporaryFolder folder;
  make_folders(folder / "data/inside");
  EXPECT_THROW(write_file_atomically(folder / "data", "x"), StorageError);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("data"));
}

// Lets this process write files of at most `bytes`, until the end of the scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(AtomicFile, KeepsTheOldFileWhenAWriteFails) {
  TemporaryFolder folder;
  write_file_atomically(folder / "data", "old");
  {
    FileSizeLimit limit(1000);
    EXPECT_THROW(write_file_atomically(folder / "data", std::string(5000, 'x')), StorageError);
  }
  EXPECT_EQ(read_file(folder / "data", 100), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("data"));
}

TEST(WriteAll, SaysThatTheDiskIsFull) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  EXPECT_EQ(message_of<StorageError>([&] { write_all(full.get(), bytes_of("x"), "runs/a"); }),
            "cannot write 'runs/a': No space left on device / the disk is full: free some space or "
            "choose another folder");
}

TEST(MakeFolders, IsIdempotentAndNamesAFileInTheWay) {
  TemporaryFolder folder;
  make_folders(folder / "a/b");
  make_folders(folder / "a/b");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));
  write_file_atomically(folder / "file", "x");
  EXPECT_THAT(message_of<StorageError>([&] { make_folders(folder / "file/c"); }),
              HasSubstr("cannot make the folder"));
}

TEST(UniqueFd, ClosesAndGivesAway) {
  int raw = -1;
  {
    UniqueFd fd(::open("/dev/null", O_RDONLY));
    raw = fd.get();
    UniqueFd other = std::move(fd);
    // NOLINTNEXTLINE(bugprone-use-after-move): it has none any more
    EXPECT_FALSE(fd.valid());
    EXPECT_EQ(other.get(), raw);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

}  // namespace
}  // namespace troika
