// Files behind URLs, by the plug-in as it is built, on Arrow's file system of this host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/storage/object_store.h>

#include "support/temporary_folder.h"

namespace troika::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_in(const ObjectStore& store, const std::string& below = "") {
  std::vector<std::string> names;
  for (const ObjectStore::File& each : store.list(below)) names.push_back(each.name);
  return names;
}

class Stored : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& content) {
    write_file_atomically(folder_.path() / "file", content);
    return folder_.path() / "file";
  }

  TemporaryFolder folder_;
  ObjectStore store_{"file://" + (folder_.path() / "store").string() + "/"};
};

TEST_F(Stored, HasNothingAtFirst) {
  EXPECT_TRUE(store_.list().empty());
  EXPECT_THROW(static_cast<void>(store_.read("a", 10)), DataError);
  store_.remove("a");  // is no error
}

TEST_F(Stored, GivesBackWhatItWasGiven) {
  const std::string large(20'000'001, 'x');
  store_.upload(file("first"), "step-1/a");
  store_.upload(file(large), "step-2/b");
  EXPECT_THAT(names_in(store_), ElementsAre("step-1/a", "step-2/b"));
  EXPECT_THAT(names_in(store_, "step-2"), ElementsAre("step-2/b"));
  EXPECT_EQ(store_.list()[1].bytes, large.size());
  EXPECT_EQ(store_.read("step-1/a", 10), "first");
  EXPECT_EQ(store_.read("step-2/b", large.size()), large);
  store_.download("step-2/b", folder_.path() / "back");
  EXPECT_EQ(read_file(folder_.path() / "back", large.size()), large);
  store_.upload(file("second"), "step-1/a");
  EXPECT_EQ(store_.read("step-1/a", 10), "second");
  store_.remove("step-1/a");
  EXPECT_THAT(names_in(store_), ElementsAre("step-2/b"));
}

TEST_F(Stored, WritesOnlyWhatTheCheckAllows) {
  int checks = 0;
  store_.write_checked("a", "text", [&] { ++checks; });
  EXPECT_EQ(checks, 1);
  EXPECT_EQ(store_.read("a", 10), "text");
  EXPECT_THROW(store_.write_checked("a", "other", [] { throw UsageError("taken"); }), UsageError);
  EXPECT_EQ(store_.read("a", 10), "text");
}

TEST_F(Stored, RefusesWhatIsTooLong) {
  store_.upload(file("longer"), "a");
  try {
    static_cast<void>(store_.read("a", 5));
    ADD_FAILURE() << "it was read";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it is longer than expected"));
  }
}

TEST_F(Stored, EmptyFiles) {
  store_.upload(file(""), "empty");
  EXPECT_EQ(store_.read("empty", 1), "");
}

TEST(ObjectStores, AreToldFromPaths) {
  EXPECT_TRUE(is_remote("s3://bucket/folder"));
  EXPECT_FALSE(is_remote("runs/a"));
}

TEST(ObjectStores, NameASchemeThatIsUnknown) {
  try {
    static_cast<void>(ObjectStore("nothing://a/b").list());
    ADD_FAILURE() << "it was listed";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot list 'nothing://a/b'"));
  }
}

}  // namespace
}  // namespace troika::test
