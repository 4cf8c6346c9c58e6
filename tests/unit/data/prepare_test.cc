#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <troika/data/prepare.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/tokenize_texts.h>
#include <troika/data/tokenizer.h>
#include <unit/data/support.h>

#include <csignal>
#include <map>
#include <set>

namespace troika {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Name to content of all files in a folder.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename()] = file_content(entry);
  }
  return files;
}

class Prepare : public ::testing::Test {
 protected:
  Prepare() {
    for (int i = 0; i < 30; ++i) {
      std::string text = "// file " + std::to_string(i) + "\n";
      for (int line = 0; line <= i * 3; ++line) text += "int value_" + std::to_string(line) + ";\n";
      write_file(text_ / ("x/" + std::to_string(100 + i) + ".cc"), text);
    }
    options_.out = out_ / "shards";
    options_.paths = {text_ / "x/*"};
  }
  std::string text_of_shards(const PrepareReport& report, const Tokenizer& tokenizer) {
    std::vector<FoundFile> files;
    for (const auto& shard : report.shards) files.push_back({shard, 1});
    const auto source = open_token_documents(files);
    EXPECT_EQ(source->documents(), report.documents);
    std::string text;
    for (std::int64_t d = 0; d < source->documents(); ++d) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(source->length(d)));
      source->read(d, 0, ids);
      text += tokenizer.decode(ids);
    }
    return text;
  }
  std::string all_text() {
    std::string text;
    for (const auto& [name, content] : contents(text_ / "x")) text += content;
    return text;
  }
  TemporaryFolder text_, out_;
  PrepareOptions options_;
};

TEST_F(Prepare, KeepsBytes) {
  const PrepareReport report = prepare_tokens(options_);
  EXPECT_EQ(report.documents, 30);
  EXPECT_EQ(report.vocab_size, 256);
  EXPECT_EQ(report.tokens, static_cast<std::int64_t>(all_text().size()));
  EXPECT_EQ(report.text_bytes, report.tokens);
  EXPECT_TRUE(report.tokenizer.empty());
  EXPECT_EQ(contents(options_.out).size(), 1U);
  EXPECT_EQ(text_of_shards(report, *open_tokenizer("bytes")), all_text());
}

TEST_F(Prepare, TrainsATokenizerAndLoadsItAgain) {
  options_.train_vocab_size = 320;
  const PrepareReport report = prepare_tokens(options_);
  EXPECT_EQ(report.tokenizer, options_.out / "tokenizer.model");
  EXPECT_LT(report.tokens, report.text_bytes * 2 / 3);
  const auto tokenizer = open_tokenizer(report.tokenizer);
  EXPECT_EQ(report.vocab_size, tokenizer->vocab_size());
  EXPECT_EQ(text_of_shards(report, *tokenizer), all_text());

  PrepareOptions again = options_;
  again.out = out_ / "again";
  again.train_vocab_size = 0;
  again.tokenizer = report.tokenizer;
  EXPECT_EQ(prepare_tokens(again).tokens, report.tokens);
  EXPECT_EQ(contents(again.out), contents(options_.out));

  // The text read with the same tokenizer is the same data set.
  DocumentOptions text = documents_in(options_.paths, 0.2), tokens = text;
  text.tokenizer = tokens.tokenizer = report.tokenizer;
  tokens.paths = {options_.out / "*.tokens"};
  const auto a = open_text(text, token_samples(16, 320), 1);
  const auto b = open_tokens(tokens, token_samples(16, 320), 1);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  const IndexRange some{0, 20};
  const auto first = build_microbatches(*a, Split::kTrain, some, 20, 1);
  const auto second = build_microbatches(*b, Split::kTrain, some, 20, 1);
  expect_same(first.front(), second.front());
  EXPECT_GT(*a->bytes_per_token(), 1.4);
  EXPECT_NEAR(*a->bytes_per_token(), *b->bytes_per_token(), 0.3);
  tokens.tokenizer = write_file(out_ / "other.model", [&] {
    std::istringstream lines("some other text\nto learn from");
    return train_sentencepiece(
        [&]() -> std::optional<std::string> {
          std::string line;
          return std::getline(lines, line) ? std::optional(line) : std::nullopt;
        },
        290);
  }());
  EXPECT_THAT(
      message_of([&] { static_cast<void>(open_tokens(tokens, token_samples(16, 320), 1)); }),
      HasSubstr("shard-00000.tokens' was not made by data.tokenizer = "));
}

TEST_F(Prepare, SaysWhatIsNoUtf8) {
  write_file(text_ / "x/latin.cc", "// gr\xFC\xDF dich\n");
  EXPECT_TRUE(prepare_tokens(options_).warnings.empty());  // bytes are taken as they are
  options_.out = out_ / "pieces";
  options_.train_vocab_size = 320;
  const PrepareReport report = prepare_tokens(options_);
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_THAT(report.warnings[0], HasSubstr("2 bytes of 1 document are no UTF-8"));
  EXPECT_THAT(report.warnings[0], HasSubstr("x/latin.cc' is the first"));

  DocumentOptions data = documents_in(options_.paths);
  data.tokenizer = report.tokenizer;
  const auto dataset = open_text(data, token_samples(8, report.vocab_size), 1);
  ASSERT_EQ(dataset->warnings().size(), 1U);
  EXPECT_EQ(dataset->warnings()[0], report.warnings[0]);
}

TEST_F(Prepare, SaysWhichTokenizerMadeTheShards) {
  const auto hint = [&](const std::string& tokenizer) -> std::string {
    DocumentOptions data = documents_in({options_.out / "*.tokens"});
    data.tokenizer = tokenizer;
    try {
      static_cast<void>(open_tokens(data, token_samples(16, 320), 1));
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("was not made by data.tokenizer = '" + tokenizer + "'"));
      return error.hint();
    }
    return "";
  };
  options_.train_vocab_size = 320;
  const std::string model = prepare_tokens(options_).tokenizer;
  EXPECT_EQ(hint(model), "");
  EXPECT_EQ(hint("bytes"), "write tokenizer = \"" + model + "\", which made them");
  const fs::path elsewhere = out_ / "moved.model";
  fs::rename(model, elsewhere);
  EXPECT_THAT(hint("bytes"), HasSubstr("give the model file that the shards were made with"));
  EXPECT_EQ(hint(elsewhere), "");

  options_.out = out_ / "of bytes";
  options_.train_vocab_size = 0;
  static_cast<void>(prepare_tokens(options_));
  EXPECT_EQ(hint("bytes"), "");
  EXPECT_EQ(hint(elsewhere), "write tokenizer = \"bytes\"");
}

TEST_F(Prepare, WritesTheSameWithAnyNumberOfThreads) {
  // Parts of one large file are shared out too.
  std::string large;
  while (large.size() < (std::size_t{300} << 10)) large += "a line of some text, again\n";
  write_file(text_ / "x/large.cc", large);
  const int before = at::get_num_threads();
  std::map<std::string, std::string> one;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    options_.out = out_ / ("t" + std::to_string(threads));
    options_.shard_tokens = 2000;
    options_.train_vocab_size = 300;
    const PrepareReport report = prepare_tokens(options_);
    EXPECT_GT(report.shards.size(), 3U);
    if (threads == 1) one = contents(options_.out);
    EXPECT_EQ(contents(options_.out), one);
    EXPECT_EQ(text_of_shards(report, *open_tokenizer(report.tokenizer)), all_text());
  }
  at::set_num_threads(before);
}

TEST_F(Prepare, ReportsProgressToTheEnd) {
  std::vector<std::int64_t> done;
  std::int64_t total = 0;
  prepare_tokens(options_, [&](std::int64_t now, std::int64_t all) {
    done.push_back(now);
    total = all;
  });
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.front(), 0);
  EXPECT_EQ(done.back(), total);
  EXPECT_EQ(total, static_cast<std::int64_t>(all_text().size()));
}

TEST_F(Prepare, LeavesNothingWhenItIsStopped) {
  struct Stop {};
  const auto stop = [](std::int64_t done, std::int64_t) {
    if (done > 0) throw Stop();
  };
  EXPECT_THROW(prepare_tokens(options_, stop), Stop);
  EXPECT_TRUE(fs::is_empty(out_.path()));
}

TEST_F(Prepare, LeavesNothingWhenTheDiskIsFull) {
  // A limit on the size of files is the full disk that a test can make: write(2) fails midway.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of<StorageError>([&] { prepare_tokens(options_); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("shard-00000.tokens"));
  EXPECT_TRUE(fs::is_empty(out_.path()));
}

TEST_F(Prepare, RefusesATakenFolder) {
  fs::create_directory(options_.out);
  EXPECT_NO_THROW(prepare_tokens(options_));  // an empty one is fine
  const auto before = contents(options_.out);
  EXPECT_THAT(message_of<UsageError>([&] { prepare_tokens(options_); }),
              HasSubstr("shards' is there already"));
  EXPECT_EQ(contents(options_.out), before);
  options_.out = write_file(out_ / "file", "");
  EXPECT_THAT(message_of<UsageError>([&] { prepare_tokens(options_); }), HasSubstr("file'"));
}

TEST_F(Prepare, RefusesWrongOptions) {
  PrepareOptions options = options_;
  options.paths = {};
  EXPECT_THAT(message_of<UsageError>([&] { prepare_tokens(options); }), HasSubstr("no data files"));
  options = options_;
  options.shard_tokens = 0;
  EXPECT_THAT(message_of<UsageError>([&] { prepare_tokens(options); }), HasSubstr("at least 1"));
  options = options_;
  options.tokenizer = "m.model";
  options.train_vocab_size = 300;
  EXPECT_THAT(message_of<UsageError>([&] { prepare_tokens(options); }),
              HasSubstr("loaded or trained"));
  options = options_;
  options.paths = {text_ / "none/*"};
  EXPECT_THAT(message_of([&] { prepare_tokens(options); }), HasSubstr("no file matches"));
  EXPECT_TRUE(fs::is_empty(out_.path()));
}

TEST(TrainingLines, AreCutAndBounded) {
  TemporaryFolder folder;
  const std::string text = "first\n\nsecond\r\n" + std::string(10000, 'x') + "\nlast";
  write_file(folder / "a", text);
  write_file(folder / "b", "of b\n");
  const std::vector<FoundFile> files = {{folder / "a", static_cast<std::int64_t>(text.size())},
                                        {folder / "b", 5}};
  const auto lines = [&](std::int64_t max_bytes) {
    const LineReader next = training_lines(read_text_files(files, TextOrder::kShuffled), max_bytes);
    std::multiset<std::string> lines;
    while (const auto line = next()) lines.insert(*line);
    return lines;
  };
  const std::string full(4096, 'x');
  EXPECT_EQ(lines(1 << 20), (std::multiset<std::string>{"first", "second\r", full, full,
                                                        std::string(1808, 'x'), "last", "of b"}));
  EXPECT_EQ(lines(1).size(), 1U);
  EXPECT_TRUE(lines(0).empty());
}

}  // namespace
}  // namespace troika
