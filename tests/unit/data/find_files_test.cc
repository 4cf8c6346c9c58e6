#include <sys/stat.h>
#include <troika/data/find_files.h>
#include <unistd.h>
#include <unit/data/support.h>

namespace troika {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Paths relative to `root`, with '|' between them.
std::string found(const fs::path& root, const std::string& pattern) {
  const std::vector<std::string> patterns = {root / pattern};
  std::string all;
  const auto files = find_files(patterns).files;
  for (const FoundFile& file : files.front()) {
    all += (all.empty() ? "" : "|") + fs::path(file.path).lexically_relative(root).string();
  }
  return all;
}

class FindFiles : public ::testing::Test {
 protected:
  FindFiles() {
    for (const char* name : {"a.h", "b.h", "c.txt", "sub/d.h", "sub/deep/e.h", "sub/deep/f.txt",
                             ".hidden.h", ".git/g.h"}) {
      write_file(root_ / name, name);
    }
  }
  TemporaryFolder root_;
};

TEST_F(FindFiles, MatchesWildcards) {
  EXPECT_EQ(found(root_.path(), "a.h"), "a.h");
  EXPECT_EQ(found(root_.path(), "*.h"), "a.h|b.h");
  EXPECT_EQ(found(root_.path(), "[bc].*"), "b.h|c.txt");
  EXPECT_EQ(found(root_.path(), "?.txt"), "c.txt");
  EXPECT_EQ(found(root_.path(), "*/d.h"), "sub/d.h");
  EXPECT_EQ(found(root_.path(), "s*/*/e.h"), "sub/deep/e.h");
  EXPECT_EQ(found(root_.path(), "**/*.h"), "a.h|b.h|sub/d.h|sub/deep/e.h");
  EXPECT_EQ(found(root_.path(), "**/e.h"), "sub/deep/e.h");
  EXPECT_EQ(found(root_.path(), "sub/**"), "sub/d.h|sub/deep/e.h|sub/deep/f.txt");
  EXPECT_EQ(found(root_.path(), "**/**/deep/**/*.txt"), "sub/deep/f.txt");
  EXPECT_EQ(found(root_.path(), "sub/./deep//*.h"), "sub/deep/e.h");
}

TEST_F(FindFiles, MatchesHiddenNamesOnlyWhenTheyAreMeant) {
  EXPECT_EQ(found(root_.path(), ".*.h"), ".hidden.h");
  EXPECT_EQ(found(root_.path(), ".git/*"), ".git/g.h");
}

TEST_F(FindFiles, SkipsWhatIsNoDataFile) {
  write_file(root_ / "empty.h", "");
  fs::create_symlink("nowhere", root_ / "dangling.h");
  fs::create_directory(root_ / "folder.h");
  ASSERT_EQ(::mkfifo((root_ / "pipe.h").c_str(), 0600), 0);
  EXPECT_EQ(found(root_.path(), "*.h"), "a.h|b.h");
}

TEST_F(FindFiles, FollowsLinksAndEndsLoops) {
  TemporaryFolder elsewhere;
  write_file(elsewhere / "far.h", "far");
  fs::create_directory_symlink(elsewhere.path(), root_ / "link");
  fs::create_directory_symlink("..", root_ / "sub/up");
  fs::create_directory_symlink(".", root_ / "sub/self");
  EXPECT_EQ(found(root_.path(), "**/*.h"), "a.h|b.h|link/far.h|sub/d.h|sub/deep/e.h");
}

TEST_F(FindFiles, CountsAFileOnce) {
  fs::create_symlink("a.h", root_ / "z.h");
  fs::create_hard_link(root_ / "b.h", root_ / "y.h");
  EXPECT_EQ(found(root_.path(), "*.h"), "a.h|b.h");

  const std::vector<std::string> patterns = {root_ / "a.h", root_ / "*.h"};
  const auto files = find_files(patterns).files;
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].size(), 1U);
  ASSERT_EQ(files[1].size(), 1U);
  EXPECT_EQ(files[1][0], (FoundFile{root_ / "b.h", 3}));
}

TEST_F(FindFiles, LeavesOutRunFoldersThatItDoesNotName) {
  for (const char* name :
       {"runs/begun/.lock", "runs/begun/flight/flight-rank-0.bin", "runs/done/.lock",
        "runs/done/recipe.toml", "runs/done/dump/1.h", "runs/copied/recipe.toml",
        "runs/copied/metrics.jsonl", "runs/notes.h", "project/recipe.toml", "project/h.h"}) {
    write_file(root_ / name, name);
  }
  EXPECT_EQ(found(root_.path(), "**/*.h"), "a.h|b.h|project/h.h|runs/notes.h|sub/d.h|sub/deep/e.h");
  EXPECT_EQ(found(root_.path(), "runs/done/**"), "runs/done/dump/1.h|runs/done/recipe.toml");
  const std::vector<std::string> all = {root_ / "**"};
  const FileSearch search = find_files(all);
  EXPECT_EQ(describe_left_out(search), "what lies in run folders is left out of the data: '" +
                                           (root_ / "runs/begun").string() + "', '" +
                                           (root_ / "runs/copied").string() + "', '" +
                                           (root_ / "runs/done").string() + "'");
  EXPECT_THAT(message_of([&] { static_cast<void>(found(root_.path(), "runs/*/*")); }),
              HasSubstr("no file matches"));
  EXPECT_EQ(describe_left_out({}), "");
}

// A rank that waits for a long walk has a sign of life for each folder.
TEST_F(FindFiles, SaysThatItGoesOnInEachFolder) {
  for (int i = 0; i < 20; ++i) write_file(root_ / ("many/" + std::to_string(i) + "/a.txt"), "a");
  int signs = 0;
  const std::vector<std::string> patterns = {root_ / "many/*/a.txt"};
  EXPECT_EQ(find_files(patterns, [&] { ++signs; }).files.front().size(), 20U);
  EXPECT_GE(signs, 20);
}

TEST_F(FindFiles, TakesANameWithWildcardsAsItIs) {
  write_file(root_ / "[x]*.h", "x");
  EXPECT_EQ(found(root_.path(), "[x]*.h"), "[x]*.h");
}

TEST_F(FindFiles, NamesWhatIsWrong) {
  write_file(root_ / "empty.h", "");
  write_file(root_ / "none/1", "");
  ASSERT_EQ(::mkfifo((root_ / "pipe").c_str(), 0600), 0);
  const auto error = [&](const std::string& name) {
    return message_of([&] { static_cast<void>(found(root_.path(), name)); });
  };
  EXPECT_THAT(error("missing.h"), HasSubstr("missing.h' does not exist"));
  EXPECT_THAT(error("sub"), HasSubstr("sub' is a folder"));
  EXPECT_THAT(error("empty.h"), HasSubstr("empty.h' is empty"));
  EXPECT_THAT(error("pipe"), HasSubstr("pipe' is not a regular file"));
  EXPECT_THAT(error("*.py"), HasSubstr("no file matches '" + (root_ / "*.py").string()));
  EXPECT_THAT(error("nowhere/**/*.h"), HasSubstr("no file matches"));
  EXPECT_THAT(error("none/*"), HasSubstr("matches is empty"));
  EXPECT_THAT(error("a.h/b"), HasSubstr("a.h/b"));
  const std::vector<std::string> twice = {root_ / "*.h", root_ / "a.h"};
  EXPECT_THAT(message_of([&] { static_cast<void>(find_files(twice)); }),
              HasSubstr("a.h' matches belongs to an earlier path"));
}

TEST_F(FindFiles, NamesAFolderThatCannotBeListed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may list every folder";
  fs::permissions(root_ / "sub", fs::perms::none);
  EXPECT_THAT(message_of([&] { static_cast<void>(found(root_.path(), "**/*.h")); }),
              HasSubstr("cannot list the folder"));
  fs::permissions(root_ / "sub", fs::perms::owner_all);
}

// Files behind URLs, by the plug-in as it is built, on Arrow's file system of this host.
TEST_F(FindFiles, FindsFilesBehindUrls) {
  const std::string url = "file://" + (root_ / "").string();
  write_file(root_ / "empty.h", "");
  const auto found_at = [&](const std::string& pattern) {
    const std::vector<std::string> patterns = {url + pattern};
    std::string all;
    const FileSearch search = find_files(patterns);
    for (const FoundFile& file : search.files.front()) {
      EXPECT_TRUE(file.path.starts_with(url)) << file.path;
      const std::string name = file.path.substr(url.size());
      EXPECT_EQ(static_cast<std::uint64_t>(file.size), fs::file_size(root_ / name));
      all += (all.empty() ? "" : "|") + name;
    }
    return all;
  };
  EXPECT_EQ(found_at("a.h"), "a.h");
  EXPECT_EQ(found_at("*.h"), "a.h|b.h");
  EXPECT_EQ(found_at("**/*.h"), "a.h|b.h|sub/d.h|sub/deep/e.h");
  EXPECT_EQ(found_at("sub/**"), "sub/d.h|sub/deep/e.h|sub/deep/f.txt");
  EXPECT_EQ(found_at("[bc].*"), "b.h|c.txt");
}

TEST_F(FindFiles, NamesAUrlThatIsNoDataFile) {
  const std::string url = "file://" + (root_ / "").string();
  const auto error = [&](std::vector<std::string> patterns) {
    return message_of([&] { (void)find_files(patterns); });
  };
  EXPECT_THAT(error({url + "sub"}), HasSubstr("sub' is a folder, not a data file"));
  EXPECT_THAT(error({url + "none.h"}), HasSubstr("none.h': there is no such"));
  EXPECT_THAT(error({url + "*.cc"}), HasSubstr("no file matches '" + url + "*.cc'"));
  EXPECT_THAT(error({url + "*.h", url + "a.h"}), HasSubstr("belongs to an earlier path"));
}

}  // namespace
}  // namespace troika
