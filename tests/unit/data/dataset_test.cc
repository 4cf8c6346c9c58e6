#include <troika/data/dataset.h>
#include <troika/data/prepare.h>
#include <unit/data/support.h>

#include <map>
#include <set>

namespace troika {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All training samples in the order of the source.
std::vector<Microbatch> in_order(const Dataset& dataset, Split split = Split::kTrain) {
  std::map<std::pair<std::int64_t, std::int64_t>, Microbatch> by_place;
  for (std::int64_t i = 0; i < dataset.samples(split); ++i) {
    const std::vector<SampleRef> sample = {dataset.at(split, i)};
    by_place[{sample[0].source, sample[0].index}] = dataset.microbatch(split, sample, 1);
  }
  EXPECT_EQ(static_cast<std::int64_t>(by_place.size()), dataset.samples(split));
  std::vector<Microbatch> batches;
  for (auto& [place, batch] : by_place) batches.push_back(std::move(batch));
  return batches;
}

// "inputs>targets" of each sample.
std::vector<std::string> shown(const Dataset& dataset) {
  std::vector<std::string> lines;
  for (const Microbatch& batch : in_order(dataset)) {
    lines.push_back(as_text(batch.tensors[0]) + ">" + as_text(batch.tensors[1]));
  }
  return lines;
}

class Packing : public ::testing::Test {
 protected:
  Packing() {
    write_file(folder_ / "1.txt", "abc");
    write_file(folder_ / "2.txt", "de");
    write_file(folder_ / "3.txt", "vwxyz");
  }
  std::unique_ptr<Dataset> open(Pack pack, std::int64_t seq_len) {
    DocumentOptions data = documents_in({folder_ / "*.txt"});
    data.pack = pack;
    return open_text(data, token_samples(seq_len), 1);
  }
  TemporaryFolder folder_;
};

TEST_F(Packing, ConcatenatesAndCuts) {
  // The stream: abc.de.vwxyz. (13 tokens).
  EXPECT_THAT(shown(*open(Pack::kConcatenate, 3)),
              ElementsAre("abc>bc.", ".de>de.", ".vw>vwx", "xyz>yz."));
  EXPECT_THAT(shown(*open(Pack::kConcatenate, 5)),
              ElementsAre("abc.d>bc.de", "e.vwx>.vwxy", "yz...>z.___"));
  EXPECT_THAT(shown(*open(Pack::kConcatenate, 1)),
              ElementsAre("a>b", "b>c", "c>.", ".>d", "d>e", "e>.", ".>v", "v>w", "w>x", "x>y",
                          "y>z", "z>."));
  EXPECT_THAT(
      shown(*open(Pack::kConcatenate, 100)),
      ElementsAre("abc.de.vwxyz" + std::string(88, '.') + ">bc.de.vwxyz." + std::string(88, '_')));
}

TEST_F(Packing, IsolatesDocuments) {
  const auto dataset = open(Pack::kIsolated, 5);
  EXPECT_THAT(shown(*dataset), ElementsAre("abc.d>bc._e", "e.vwx>._wxy", "yz...>z.___"));
  const auto batches = in_order(*dataset);
  EXPECT_THAT(values(batches[0].tensors[2]), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(values(batches[1].tensors[2]), ElementsAre(0, 0, 1, 1, 1));
  // Padding is a document of its own: nothing attends to it.
  EXPECT_THAT(values(batches[2].tensors[2]), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(batches[0].valid, 4);
  EXPECT_EQ(batches[2].valid, 2);
}

TEST_F(Packing, PadsDocuments) {
  EXPECT_THAT(shown(*open(Pack::kPad, 3)), ElementsAre("abc>bc.", "de.>e._", "vwx>wxy", "yz.>z._"));
  EXPECT_THAT(shown(*open(Pack::kPad, 5)),
              ElementsAre("abc..>bc.__", "de...>e.___", "vwxyz>wxyz."));
  const auto dataset = open(Pack::kPad, 4);
  EXPECT_THAT(shown(*dataset), ElementsAre("abc.>bc._", "de..>e.__", "vwxy>wxyz", "z...>.___"));
  EXPECT_EQ(in_order(*dataset)[1].valid, 2);
  EXPECT_FALSE(in_order(*dataset)[1].tensors.value_or_none(2).defined());
}

// Whatever the length, each token is a target as often as its packing says.
TEST_F(Packing, MakesEachTokenATargetOnce) {
  write_files(folder_ / "more", 40, 60);
  std::string stream;
  for (const auto& name : {"1.txt", "2.txt", "3.txt"}) stream += file_content(folder_ / name) + ".";
  std::int64_t documents = 3;
  for (int i = 0; i < 40; ++i, ++documents) {
    stream += file_content(folder_ / ("more/file-" + std::to_string(1000 + i) + ".txt")) + ".";
  }
  for (const std::int64_t length : {1, 2, 7, 16, 64, 5000}) {
    DocumentOptions data = documents_in({folder_ / "**/*.txt"});
    std::string targets;
    for (const Microbatch& batch : in_order(*open_text(data, token_samples(length), 1))) {
      targets += as_text(batch.tensors[1]);
    }
    EXPECT_EQ(targets.substr(0, stream.size() - 1), stream.substr(1)) << length;
    EXPECT_EQ(targets.find_first_not_of('_', stream.size() - 1), std::string::npos) << length;
    for (const Pack pack : {Pack::kIsolated, Pack::kPad}) {
      data.pack = pack;
      const auto dataset = open_text(data, token_samples(length), 1);
      std::int64_t valid = 0;
      for (const Microbatch& batch : in_order(*dataset)) valid += batch.valid;
      EXPECT_EQ(valid, static_cast<std::int64_t>(stream.size()) - documents) << length;
      EXPECT_EQ(valid, dataset->facts().tokens);
      EXPECT_DOUBLE_EQ(*dataset->bytes_per_token(), 1.0);
    }
  }
}

TEST_F(Packing, FillsMicrobatches) {
  const auto dataset = open(Pack::kConcatenate, 3);
  const std::vector<SampleRef> samples = {{0, 0, 3, 17}, {0, 0, 0, 18}};
  const Microbatch batch = dataset->microbatch(Split::kTrain, samples, 9);
  EXPECT_EQ(batch.tensors[0].sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(as_text(batch.tensors[0]), "xyzabc");
  EXPECT_EQ(as_text(batch.tensors[1]), "yz.bc.");
  EXPECT_THAT(values(batch.sample_ids), ElementsAre(17, 18));
  EXPECT_EQ(batch.valid, 6);
  EXPECT_EQ(batch.step, 9);
}

class DatasetTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(DatasetTest, SplitsByDocument) {
  write_files(folder_ / "x", 300, 50);
  const auto texts = [&](const Dataset& dataset, Split split) {
    std::set<std::string> texts;
    for (const Microbatch& batch : in_order(dataset, split))
      texts.insert(as_text(batch.tensors[0]));
    return texts;
  };
  const auto open = [&](double fraction, std::uint64_t seed = 1) {
    DocumentOptions data = documents_in({folder_ / "x/*"}, fraction);
    data.pack = Pack::kPad;
    return open_text(data, token_samples(64), seed);
  };
  const auto all = texts(*open(0), Split::kTrain);
  EXPECT_EQ(all.size(), 300U);
  std::set<std::string> before;
  for (const double fraction : {0.05, 0.2, 0.5}) {
    const auto dataset = open(fraction);
    const auto held_out = texts(*dataset, Split::kHeldOut);
    auto both = texts(*dataset, Split::kTrain);
    EXPECT_EQ(both.size() + held_out.size(), 300U);
    both.insert(held_out.begin(), held_out.end());
    EXPECT_EQ(both, all);
    EXPECT_NEAR(static_cast<double>(held_out.size()), 300 * fraction, 40);
    EXPECT_EQ(dataset->facts().held_out_documents, static_cast<std::int64_t>(held_out.size()));
    // More of them with a larger fraction; the same ones for any seed, name and neighbours.
    EXPECT_TRUE(std::includes(held_out.begin(), held_out.end(), before.begin(), before.end()));
    EXPECT_EQ(texts(*open(fraction, 2), Split::kHeldOut), held_out);
    before = held_out;
  }
  fs::rename(folder_ / "x", folder_ / "renamed");
  fs::create_directory(folder_ / "x");
  for (const auto& file : fs::directory_iterator(folder_ / "renamed")) {
    fs::copy(file, folder_ / "x" / ("z" + file.path().filename().string()));
  }
  EXPECT_EQ(texts(*open(0.5), Split::kHeldOut), before);
}

TEST_F(DatasetTest, ShufflesTheHeldOutSideTheSameForEverySeed) {
  write_files(folder_ / "x", 200, 50);
  const DocumentOptions data = documents_in({folder_ / "x/*"}, 0.5);
  const auto one = open_text(data, token_samples(8), 1), two = open_text(data, token_samples(8), 2);
  std::vector<std::int64_t> order, train_one, train_two;
  for (std::int64_t i = 0; i < one->samples(Split::kHeldOut); ++i) {
    EXPECT_EQ(one->at(Split::kHeldOut, i), two->at(Split::kHeldOut, i));
    order.push_back(one->at(Split::kHeldOut, i).index);
    train_one.push_back(one->at(Split::kTrain, i).index);
    train_two.push_back(two->at(Split::kTrain, i).index);
  }
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(train_one, train_two);
}

TEST_F(DatasetTest, SaysWhenASideIsEmpty) {
  const auto text = write_file(folder_ / "one.txt", "the only document");
  EXPECT_THAT(message_of([&] {
                static_cast<void>(open_text(documents_in({text}, 0.999999), token_samples(4), 1));
              }),
              HasSubstr("held-out split takes its only document"));
  const auto dataset = open_text(documents_in({text}, 1e-9), token_samples(4), 1);
  EXPECT_EQ(dataset->samples(Split::kHeldOut), 0);
  ASSERT_EQ(dataset->warnings().size(), 1U);
  EXPECT_THAT(dataset->warnings()[0], HasSubstr("evaluation is off"));
  EXPECT_TRUE(open_text(documents_in({text}, 0), token_samples(4), 1)->warnings().empty());
}

TEST_F(DatasetTest, MixesByWeight) {
  write_file(folder_ / "a.txt", std::string(4001, 'a'));
  write_file(folder_ / "b.txt", std::string(401, 'b'));
  DocumentOptions data = documents_in({folder_ / "a.txt", folder_ / "b.txt"});
  data.weights = {1, 3};
  const auto dataset = open_text(data, token_samples(10), 5);
  EXPECT_EQ(dataset->samples(Split::kTrain), 401 + 41);
  std::map<std::int64_t, std::int64_t> from;
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::int64_t>> seen;
  for (std::int64_t i = 0; i < 400; ++i) {
    const SampleRef sample = dataset->at(Split::kTrain, i);
    ++from[sample.source];
    EXPECT_TRUE((seen[{sample.source, sample.epoch}].insert(sample.index).second));
    const std::vector<SampleRef> one = {sample};
    const auto text = as_text(dataset->microbatch(Split::kTrain, one, 1).tensors[0]);
    EXPECT_EQ(text.find(sample.source == 0 ? 'b' : 'a'), std::string::npos);
  }
  EXPECT_EQ(from[0], 100);
  EXPECT_EQ(from[1], 300);
  EXPECT_EQ((seen[{1, 6}].size()), 41U);  // seven whole passes and a bit
}

TEST_F(DatasetTest, MixesBySizeWithoutWeights) {
  write_file(folder_ / "a.txt", std::string(899, 'a'));
  write_file(folder_ / "b.txt", std::string(99, 'b'));
  const auto dataset =
      open_text(documents_in({folder_ / "a.txt", folder_ / "b.txt"}), token_samples(10), 5);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 100; ++i) seen.insert(dataset->at(Split::kTrain, i).index);
  EXPECT_EQ(seen.size(), 100U);  // one pass over both holds everything once
}

TEST_F(DatasetTest, ReadsShardsAsTheTextTheyWereMadeFrom) {
  write_files(folder_ / "x", 150, 80);
  PrepareOptions options;
  options.out = folder_ / "shards";
  options.paths = {folder_ / "x/*"};
  options.shard_tokens = 1000;
  EXPECT_GT(prepare_tokens(options).shards.size(), 2U);
  for (const Pack pack : {Pack::kConcatenate, Pack::kIsolated, Pack::kPad}) {
    DocumentOptions text = documents_in({folder_ / "x/*"}, 0.2), tokens = text;
    text.pack = tokens.pack = pack;
    tokens.paths = {folder_ / "shards/*.tokens"};
    const auto a = open_text(text, token_samples(16), 3),
               b = open_tokens(tokens, token_samples(16), 3);
    EXPECT_EQ(a->fingerprint(), b->fingerprint());
    EXPECT_NEAR(*a->bytes_per_token(), *b->bytes_per_token(), 1e-9);
    for (const Split split : {Split::kTrain, Split::kHeldOut}) {
      ASSERT_EQ(a->samples(split), b->samples(split));
      const IndexRange all{0, a->samples(split)};
      const auto from_text = build_microbatches(*a, split, all, 7, 1);
      const auto from_shards = build_microbatches(*b, split, all, 7, 1);
      ASSERT_EQ(from_text.size(), from_shards.size());
      for (std::size_t i = 0; i < from_text.size(); ++i) expect_same(from_text[i], from_shards[i]);
    }
  }
}

TEST_F(DatasetTest, TellsDataListsApart) {
  write_file(folder_ / "a.txt", "one");
  write_file(folder_ / "b.txt", "two");
  const auto fingerprint = [&](std::vector<std::string> paths) {
    return open_text(documents_in(std::move(paths)), token_samples(2), 1)->fingerprint();
  };
  const std::string both = fingerprint({folder_ / "*.txt"});
  EXPECT_EQ(both.size(), 16U);
  EXPECT_EQ(both, fingerprint({folder_ / "a.txt", folder_ / "b.txt"}));
  EXPECT_NE(both, fingerprint({folder_ / "a.txt"}));
  write_file(folder_ / "b.txt", "twO");
  EXPECT_NE(both, fingerprint({folder_ / "*.txt"}));
}

TEST_F(DatasetTest, RefusesWhatDoesNotGoTogether) {
  const std::string text = write_file(folder_ / "a.txt", "text with \xC3\xBC");
  DocumentOptions weighted = documents_in({text});
  weighted.weights = {1, 2};
  EXPECT_THAT(message_of<InternalError>(
                  [&] { static_cast<void>(open_text(weighted, token_samples(4), 1)); }),
              HasSubstr("data.weights does not go with data.paths"));
  EXPECT_THAT(message_of([&] {
                static_cast<void>(open_tokens(documents_in({text}), token_samples(4), 1));
              }),
              HasSubstr("a.txt' is not a token shard"));
  EXPECT_THAT(message_of([&] {
                static_cast<void>(open_text(documents_in({text}), token_samples(4, 128), 1));
              }),
              HasSubstr("a.txt' holds the token id 195, but model.vocab_size is 128"));
  write_file(folder_ / "a.txt", "ascii only");
  EXPECT_NO_THROW(static_cast<void>(open_text(documents_in({text}), token_samples(4, 128), 1)));
}

TEST_F(DatasetTest, NamesAFileThatChanged) {
  const std::string text = write_file(folder_ / "a.txt", std::string(100, 'a'));
  const auto dataset = open_text(documents_in({text}), token_samples(99), 1);
  const std::vector<SampleRef> samples = {{0, 0, 0, 0}};
  fs::resize_file(text, 10);
  const auto read = [&] { static_cast<void>(dataset->microbatch(Split::kTrain, samples, 1)); };
  EXPECT_THAT(message_of(read), HasSubstr("a.txt' is shorter than the 100 bytes"));
  fs::remove(text);
  EXPECT_THAT(message_of(read), HasSubstr("cannot read the data file"));
}

}  // namespace
}  // namespace troika
