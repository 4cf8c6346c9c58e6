#include <troika/data/host_work.h>
#include <troika/data/sources/text/shared_tokens.h>
#include <unit/data/support.h>

#include <map>

namespace troika {
namespace {

// Two ranks of a host, one after the other: the second is given what the first has made.
class Recorded final : public HostWork {
 public:
  [[nodiscard]] int ranks() override { return 2; }
  [[nodiscard]] std::string once(std::string_view label, const Make& make) override {
    const auto [found, is_new] = known_.try_emplace(std::string(label));
    if (is_new) found->second = make([] {});
    return found->second;
  }
  void wait_for_all(std::string_view) override {}

 private:
  std::map<std::string, std::string> known_;
};

TEST(HostWork, GivesAListOfFilesToAll) {
  const FileSearch search = {{{{"a b\n", 3}, {"s3://bucket/c", 5}}, {{"d", 1}}}, {"runs/x"}};
  Recorded host;
  int calls = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const FileSearch found = find_once(host, [&](const GoesOn&) {
      ++calls;
      return search;
    });
    EXPECT_EQ(found.files, search.files);
    EXPECT_EQ(found.left_out, search.left_out);
  }
  EXPECT_EQ(calls, 1);
}

// Reads files, and looks into the folder for temporary files meanwhile.
class Watching final : public TextReader {
 public:
  Watching(std::unique_ptr<TextReader> inner, std::filesystem::path folder)
      : inner_(std::move(inner)), folder_(std::move(folder)) {}
  std::optional<TextPart> next() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a process that is killed now leaves a file";
    return inner_->next();
  }
  std::uint64_t position(std::size_t document) const override { return inner_->position(document); }
  std::string describe_position(std::uint64_t position) const override {
    return inner_->describe_position(position);
  }
  std::int64_t done_bytes() const override { return inner_->done_bytes(); }
  std::int64_t all_bytes() const override { return inner_->all_bytes(); }

 private:
  std::unique_ptr<TextReader> inner_;
  std::filesystem::path folder_;
};

TEST(HostWork, TokenisesIntoAFileThatAKilledProcessDoesNotLeave) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "text");
  std::filesystem::create_directories(folder / "tmp");
  write_files(folder / "text", 10, 80);
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", (folder / "tmp").c_str(), 1);
  const std::vector<std::string> paths = {folder / "text/*.txt"};
  const FileSearch search = find_files(paths);
  OwnWork host;
  const TokenisedTexts texts = tokenise_once(
      host,
      [&] {
        return std::make_unique<Watching>(read_text_files(search.files.front()), folder / "tmp");
      },
      *open_tokenizer("bytes"), Tokenless::kKept);
  EXPECT_EQ(texts.tokens->documents(), 10);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "tmp"));
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

// As in containers that share no folder for temporary files.
TEST(HostWork, TokenisesForItselfWhereTheFileOfAnotherIsNotThere) {
  TemporaryFolder folder;
  write_files(folder.path(), 10, 80);
  std::vector<std::string> paths = {folder / "*.txt"};
  const FileSearch search = find_files(paths);
  const auto bytes = open_tokenizer("bytes");
  Recorded host;
  int opened = 0;
  const auto open = [&] {
    ++opened;
    return read_text_files(search.files.front());
  };
  // The file of the first goes when it is done, since nobody waits for the second here.
  for (int rank = 0; rank < 2; ++rank) {
    const TokenisedTexts texts = tokenise_once(host, open, *bytes, Tokenless::kKept);
    EXPECT_EQ(opened, rank + 1);
    ASSERT_EQ(texts.tokens->documents(), 10);
    EXPECT_EQ(texts.positions.size(), 10U);
    std::vector<std::int64_t> ids(2);
    texts.tokens->read(7, 0, ids);
    EXPECT_EQ(ids, (std::vector<std::int64_t>{'7', ':'}));
  }
}

}  // namespace
}  // namespace troika
