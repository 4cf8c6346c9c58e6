// Ranks of a host that open their data: one of them walks folders and tokenises for all.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/dataset.h>
#include <troika/data/kind.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/train/host_ranks.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

// Shares the work of all ranks of a test, and counts what this one does of it.
class CountedWork final : public HostWork {
 public:
  explicit CountedWork(const Group& group)
      : ranks_([&group] { return group; }, Seconds(30), Seconds(0)) {}

  [[nodiscard]] int ranks() override { return ranks_.ranks(); }
  [[nodiscard]] std::string once(std::string_view label, const Make& make) override {
    return ranks_.once(label, [&](const auto& goes_on) {
      made_.emplace_back(label);
      return make(goes_on);
    });
  }
  void wait_for_all(std::string_view label) override { ranks_.wait_for_all(label); }
  [[nodiscard]] const std::vector<std::string>& made() const { return made_; }

 private:
  HostRanks ranks_;
  std::vector<std::string> made_;
};

SampleSpec token_samples(std::int64_t vocab_size) {
  const TensorSpec tokens{"input_ids", at::kLong, {32}, vocab_size, "vocab_size"};
  TensorSpec targets = tokens;
  targets.name = "targets";
  targets.role = TensorRole::kTarget;
  return {{tokens, targets}, 32, "tokens"};
}

std::string line_of(int file, int line) {
  return "value_" + std::to_string(file * 7919 % 1000) + " = " + std::to_string(line * line) +
         ";\n";
}

// Texts of 1.1 MB and a tokenizer for them, on one rank; the last text is no UTF-8.
void write_texts(Rank& rank) {
  if (rank.index() == 0) {
    std::filesystem::create_directories(rank.folder() / "text");
    std::filesystem::create_directories(rank.folder() / "temporary");
    for (int file = 0; file < 36; ++file) {
      std::string text;
      for (int line = 0; text.size() < 30'000; ++line) text += line_of(file, line);
      if (file == 35) text += "gr\xFC\xDF dich\n";
      std::ofstream(rank.folder() / "text" / (std::to_string(100 + file) + ".txt")) << text;
    }
    int line = 0;
    const auto next = [&]() -> std::optional<std::string> {
      if (line == 200) return std::nullopt;
      ++line;
      return line_of(line % 36, line);
    };
    write_file_atomically(rank.folder() / "a.model", train_sentencepiece(next, 320));
  }
  rank.wait_for_all("texts");
  setenv("TMPDIR", (rank.folder() / "temporary").c_str(), 1);
}

DocumentOptions texts_of(const Rank& rank) {
  DocumentOptions data;
  data.paths = {(rank.folder() / "text/*.txt").string()};
  data.tokenizer = (rank.folder() / "a.model").string();
  data.held_out_fraction = 0.2;
  return data;
}

void expect_same_data(const Dataset& own, const Dataset& shared) {
  EXPECT_EQ(shared.fingerprint(), own.fingerprint());
  EXPECT_EQ(shared.files(), own.files());
  EXPECT_EQ(shared.warnings(), own.warnings());
  EXPECT_EQ(shared.bytes_per_token(), own.bytes_per_token());
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    ASSERT_EQ(shared.samples(split), own.samples(split));
    const IndexRange some{0, 50};
    const auto expected = build_microbatches(own, split, some, 50, 1);
    const auto read = build_microbatches(shared, split, some, 50, 1);
    EXPECT_TRUE(read[0].tensors.find("input_ids")->equal(*expected[0].tensors.find("input_ids")));
    EXPECT_TRUE(read[0].tensors.find("targets")->equal(*expected[0].tensors.find("targets")));
  }
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

RANK_TEST(HostRanks, TokeniseOnceAndReadTheSameBits, 3) {
  write_texts(rank);
  const Group group = rank.group();
  const DataOptions data(text_kind(), texts_of(rank));
  CountedWork host(group);
  const auto own = open_dataset(data, token_samples(400), 1);
  ASSERT_EQ(own->warnings().size(), 1U);
  const auto shared = open_dataset(data, token_samples(400), 1, host);
  expect_same_data(*own, *shared);
  const std::vector<std::string> all = {"data files", "tokens of the text"};
  EXPECT_EQ(host.made(), rank.index() == 0 ? all : std::vector<std::string>{});
  rank.wait_for_all("data sets");
  EXPECT_TRUE(std::filesystem::is_empty(rank.folder() / "temporary"));
}

// Where there is no room for temporary files.
RANK_TEST(HostRanks, TokeniseEachForItselfWhereTheyCanShareNoFile, 2) {
  write_texts(rank);
  setenv("TMPDIR", (rank.folder() / "nowhere").c_str(), 1);
  const Group group = rank.group();
  const DataOptions data(text_kind(), texts_of(rank));
  CountedWork host(group);
  expect_same_data(*open_dataset(data, token_samples(400), 1),
                   *open_dataset(data, token_samples(400), 1, host));
}

// Of more files than a rank had better look at by itself.
RANK_TEST(HostRanks, ReadTheHeadsOfManyFilesOnce, 2) {
  if (rank.index() == 0) {
    for (int i = 0; i < 4'100; ++i) {
      std::ofstream(rank.folder() / (std::to_string(10'000 + i) + ".txt")) << "text " << i;
    }
  }
  rank.wait_for_all("texts");
  const Group group = rank.group();
  DocumentOptions data;
  data.paths = {(rank.folder() / "*.txt").string()};
  data.held_out_fraction = 0.2;
  const DataOptions options(text_kind(), data);
  CountedWork host(group);
  expect_same_data(*open_dataset(options, token_samples(256), 1),
                   *open_dataset(options, token_samples(256), 1, host));
  const std::vector<std::string> all = {"data files", "heads of the data files"};
  EXPECT_EQ(host.made(), rank.index() == 0 ? all : std::vector<std::string>{});
}

RANK_TEST(HostRanks, TokeniseColumnsOnceAndNameTheirRows, 2) {
  const std::filesystem::path table = rank.folder() / "a.csv";
  if (rank.index() == 0) {
    write_file_atomically(table, "question,text\na,one\nb,\nc,three\nd,f\xC3\xBCnf\n");
  }
  rank.wait_for_all("table");
  const Group group = rank.group();
  DocumentOptions data;
  data.paths = {table.string()};
  data.column = "text";
  data.prompt_column = "question";
  data.pack = Pack::kPad;
  data.held_out_fraction = 0;
  const DataOptions options(text_kind(), data);
  CountedWork host(group);
  const auto own = open_dataset(options, token_samples(256), 1);
  const auto shared = open_dataset(options, token_samples(256), 1, host);
  EXPECT_EQ(shared->fingerprint(), own->fingerprint());
  EXPECT_EQ(shared->samples(Split::kTrain), 3);
  const IndexRange all{0, 3};
  const auto expected = build_microbatches(*own, Split::kTrain, all, 3, 1);
  const auto read = build_microbatches(*shared, Split::kTrain, all, 3, 1);
  EXPECT_TRUE(read[0].tensors.find("targets")->equal(*expected[0].tensors.find("targets")));
  EXPECT_EQ(read[0].valid, expected[0].valid);
  EXPECT_EQ(host.made().size(), rank.index() == 0 ? 2U : 0U);
  // The fourth row has an id that the model does not know; each rank says so by itself.
  const auto refuse = [&] { (void)open_dataset(options, token_samples(128), 1, host); };
  EXPECT_THAT(error_of(refuse), HasSubstr("holds the token id 195"));
  EXPECT_EQ(error_of(refuse),
            error_of([&] { (void)open_dataset(options, token_samples(128), 1); }));
}

RANK_TEST(HostRanks, ThrowTheErrorOfTheRankThatWorks, 3) {
  const Group group = rank.group();
  DocumentOptions data;
  // Each path is of one rank alone, so that the words are those of the first.
  data.paths = {"/nowhere/of-rank-" + std::to_string(rank.index()) + ".txt"};
  CountedWork host(group);
  const std::string error = error_of(
      [&] { (void)open_dataset(DataOptions(text_kind(), data), token_samples(256), 1, host); });
  EXPECT_EQ(error,
            "the data file '/nowhere/of-rank-0.txt' does not exist | check the path; relative ones "
            "start at the folder the command was started in");
  EXPECT_EQ(host.made().size(), rank.index() == 0 ? 1U : 0U);
}

RANK_TEST(HostRanks, WaitForAsLongAsTheWorkGoesOn, 3) {
  const Group group = rank.group();
  CountedWork host(group);
  const std::string large(3'000'001, 'x');
  for (const std::string& text : {std::string(), std::string("short"), large}) {
    EXPECT_EQ(host.once("test",
                        [&](const auto& goes_on) {
                          for (int i = 0; i < 100; ++i) goes_on();
                          return text;
                        }),
              text);
  }
}

RANK_FUNCTION(dies_while_it_works) {
  const Group group = rank.group();
  CountedWork host(group);
  try {
    (void)host.once("test", [&](const auto& goes_on) {
      goes_on();
      raise(SIGKILL);
      return std::string();
    });
  } catch (const PeerError& error) {
    rank.report("error", error.what());
  }
}

TEST(HostRanks, HearOfTheDeathOfTheRankThatWorks) {
  const auto results = run_ranks("dies_while_it_works", 3);
  EXPECT_EQ(results[0].signal, SIGKILL);
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_TRUE(results[rank].ok()) << results[rank].account();
    EXPECT_THAT(results[rank].values.at("error"), HasSubstr("rank 0"));
  }
}

TEST(PlaceOfPaths, IsOneForProcessesThatSeeTheSameFiles) {
  const std::uint64_t here = paths_fingerprint("host");
  EXPECT_EQ(paths_fingerprint("host"), here);
  EXPECT_NE(paths_fingerprint("other"), here);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path("/");  // relative paths lead elsewhere
  EXPECT_NE(paths_fingerprint("host"), here);
  std::filesystem::current_path(before);
  EXPECT_EQ(paths_fingerprint("host"), here);
}

}  // namespace
}  // namespace troika::test
