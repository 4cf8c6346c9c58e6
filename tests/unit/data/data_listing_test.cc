// How data differ between processes, and from what a run began with, in words.
#include <troika/data/data_listing.h>
#include <troika/data/tokenizer.h>
#include <unit/data/support.h>

#include <functional>

namespace troika {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A folder of 12 files behind one path, and copies of it.
class Listing : public ::testing::Test {
 protected:
  Listing() {
    for (int i = 0; i < 12; ++i) write("ours", name_of(i), std::string(5000, 'a'));
  }
  // A tokenizer of about so many ids.
  static std::string tokenizer(std::int64_t size) {
    int left = 60;
    const auto line = [&]() -> std::optional<std::string> {
      return left-- > 0 ? std::optional("three horses abreast") : std::nullopt;
    };
    return train_sentencepiece(line, size);
  }
  static std::string name_of(int i) { return "file-" + std::to_string(100 + i) + ".txt"; }
  std::filesystem::path write(const char* host, const std::string& name, const std::string& text) {
    return write_file(root_ / host / "text" / name, text);
  }
  // What a process in that folder reads.
  [[nodiscard]] DataListing of(const char* host) const {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(root_ / host);
    DocumentOptions options = documents_in({"text/*.txt"});
    if (std::filesystem::exists("the.model")) options.tokenizer = "the.model";
    const auto dataset = open_text(options, token_samples(8, 400), 1);
    std::filesystem::current_path(before);
    return DataListing::of(*dataset);
  }
  // How a copy differs once `change` has changed it.
  std::string difference(const std::function<void()>& change) {
    std::filesystem::remove_all(root_ / "theirs");
    std::filesystem::copy(root_ / "ours", root_ / "theirs",
                          std::filesystem::copy_options::recursive);
    change();
    const DataListing ours = of("ours"), theirs = of("theirs");
    EXPECT_NE(ours.summary(), theirs.summary());
    return theirs.difference_from(ours.summary(), ours.excerpt(theirs.summary()));
  }
  void remove(const char* host, const std::string& name) {
    std::filesystem::remove(root_ / host / "text" / name);
  }

  TemporaryFolder root_;
};

TEST_F(Listing, IsTheSameOfACopyElsewhere) {
  std::filesystem::copy(root_ / "ours", root_ / "theirs", std::filesystem::copy_options::recursive);
  EXPECT_EQ(of("ours").summary(), of("theirs").summary());
}

TEST_F(Listing, NamesTheFirstFileThatDiffers) {
  EXPECT_EQ(difference([&] { write("theirs", name_of(2), std::string(5000 + 4096, 'a')); }),
            "'text/file-102.txt' (file 3 of 12) is 4.0 KiB longer");
  EXPECT_EQ(difference([&] { write("theirs", name_of(11), std::string(4999, 'a')); }),
            "'text/file-111.txt' (file 12 of 12) is 1 B shorter");
  EXPECT_EQ(difference([&] { write("theirs", name_of(0), "b" + std::string(4999, 'a')); }),
            "'text/file-100.txt' (file 1 of 12) has other contents");
  EXPECT_EQ(difference([&] { remove("theirs", name_of(4)); }),
            "'text/file-104.txt' (file 5 of 12) is missing");
  EXPECT_EQ(difference([&] { remove("theirs", name_of(11)); }),
            "'text/file-111.txt' (file 12 of 12) is missing");
  EXPECT_EQ(difference([&] { write("theirs", "file-1035.txt", "new"); }),
            "'text/file-1035.txt' is there in addition to the 12 files");
  EXPECT_EQ(difference([&] { write("theirs", "z.txt", "new"); }),
            "'text/z.txt' is there in addition to the 12 files");
}

// Tokens are made by another one, and the texts are the same.
TEST_F(Listing, NamesTheTokenizer) {
  write_file(root_ / "ours/the.model", tokenizer(290));
  std::string other = tokenizer(280);
  EXPECT_THAT(difference([&] { write_file(root_ / "theirs/the.model", other); }),
              MatchesRegex("'the.model' \\(file 13 of 13\\) is [0-9.]+ K?i?B shorter"));
  EXPECT_EQ(difference([&] { std::filesystem::remove(root_ / "theirs/the.model"); }),
            "'the.model' (file 13 of 13) is missing");
  const std::string before = of("ours").record();
  write_file(root_ / "ours/the.model", other);
  EXPECT_THAT(of("ours").changes_since(before), HasSubstr("'the.model' (file 13 of 13) is "));
}

// More files than a block has.
TEST_F(Listing, FindsADifferenceFarBehind) {
  for (int i = 0; i < 1200; ++i) write("ours", "more-" + std::to_string(1000 + i) + ".txt", "m");
  EXPECT_EQ(difference([&] { write("theirs", "more-2188.txt", "mm"); }),
            "'text/more-2188.txt' (file 1201 of 1212) is 1 B longer");
  EXPECT_EQ(difference([&] { remove("theirs", "more-1011.txt"); }),
            "'text/more-1011.txt' (file 24 of 1212) is missing");
  // The last one of a block.
  EXPECT_EQ(difference([&] { remove("theirs", "more-1499.txt"); }),
            "'text/more-1499.txt' (file 512 of 1212) is missing");
}

TEST_F(Listing, TellsContentsApart) {
  const std::vector<DataFile> files = {{"a", 1, 0}, {"b c", 2, 0}};
  const std::vector<std::string> ours = {"01", "02"}, theirs = {"01", "03"};
  const DataListing one = DataListing::of_contents(files, ours);
  const DataListing other = DataListing::of_contents(files, theirs);
  EXPECT_EQ(other.difference_from(one.summary(), one.excerpt(other.summary())),
            "'b c' (file 2 of 2) has other contents");
}

TEST_F(Listing, RefusesTextsThatAreNone) {
  const DataListing ours = of("ours");
  EXPECT_THAT(message_of([&] { (void)ours.excerpt("twelve 0123"); }), HasSubstr("a number"));
  EXPECT_THAT(message_of([&] { (void)ours.excerpt(""); }), HasSubstr("empty"));
  EXPECT_THAT(message_of([&] { (void)ours.difference_from("12 0", std::string("f5\0", 3)); }),
              HasSubstr("no path"));
  EXPECT_THAT(message_of([&] { (void)ours.changes_since("files 1\n5 x name\n"); }),
              HasSubstr("a number"));
}

TEST_F(Listing, SaysWhatHasChangedSince) {
  const std::string before = of("ours").record();
  EXPECT_EQ(of("ours").changes_since(before), "");
  write("ours", name_of(2), std::string(5000 + 4096, 'a'));
  EXPECT_EQ(of("ours").changes_since(before),
            "'text/file-102.txt' (file 3 of 12) is 4.0 KiB longer");
  remove("ours", name_of(1));
  EXPECT_EQ(of("ours").changes_since(before),
            "'text/file-101.txt' (file 2 of 12) is missing; 1 more file has changed");
  write("ours", "with space and \xff.txt", "new");
  EXPECT_THAT(of("ours").changes_since(before), HasSubstr("; 2 more files have changed"));
  const std::string with_odd_name = of("ours").record();
  EXPECT_EQ(with_odd_name.find_first_of("\xff"), std::string::npos);
  EXPECT_EQ(of("ours").changes_since(with_odd_name), "");
  EXPECT_THAT(DataListing::of_contents({}, {}).changes_since(before),
              HasSubstr("file-100.txt' (file 1 of 12) is missing; 11 more files have changed"));
}

// The manifest holds the first of many files, and one hash of the others.
TEST_F(Listing, SaysWhetherFilesBeyondTheRecordHaveChanged) {
  for (int i = 0; i < 1200; ++i) write("ours", "more-" + std::to_string(1000 + i) + ".txt", "m");
  const std::string before = of("ours").record();
  EXPECT_LT(before.size(), 34'000U);
  EXPECT_EQ(of("ours").changes_since(before), "");
  write("ours", "more-2199.txt", "mm");
  EXPECT_THAT(of("ours").changes_since(before), HasSubstr("some are others"));
  write("ours", name_of(0), "b");
  EXPECT_THAT(of("ours").changes_since(before),
              HasSubstr("'text/file-100.txt' (file 1 of 1212) is 4.9 KiB shorter; 1 more file"));
}

TEST_F(Listing, ComparesWhatTextsBecomeTokensBy) {
  const auto bytes = open_text(documents_in({root_ / "ours/text/*.txt"}), token_samples(8), 1);
  EXPECT_EQ(DataListing::of_description(*bytes).summary(), "0");
}

}  // namespace
}  // namespace troika
