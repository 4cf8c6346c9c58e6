#include <troika/data/sources/table/table.h>
#include <unit/data/table_support.h>

#include <array>
#include <map>

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Table, ConcatenatesColumnsInTheOrderOfTheRecipe) {
  write("a.csv", "b,y,a,c\n2,0,1,3\n5,1,4,6\n");
  options_.columns = {number("a"), number("*"), label("y")};
  EXPECT_THAT(rows_of(*open(classes(kOpen, kOpen))), ElementsAre(Row{1, 2, 3, 0}, Row{4, 5, 6, 1}));
  EXPECT_EQ(open(classes(kOpen, kOpen))
                ->microbatch(Split::kTrain, std::vector<SampleRef>{{}, {}}, 1)
                .valid,
            2);
}

TEST_F(Table, DescribesItselfToTheModel) {
  write("a.csv", "a,word,y,z\n1,dog,0,0.5\n2,cat,2,1\n3,dog,1,2\n");
  options_.columns = {number("a"), column("word", ColumnUse::kCategory), label("y")};
  const auto described = [&](const SampleSpec& sample) {
    return *table_kind().describe(Options(options_), sample, Origins());
  };
  EXPECT_THAT(described(classes(kOpen, kOpen)).input().shape, ElementsAre(3));
  EXPECT_EQ(described(classes(kOpen, kOpen)).target().range, 3);
  options_.columns[2] = label("word");
  options_.columns[1] = number("z");
  EXPECT_EQ(described(classes(kOpen, kOpen)).target().range, 2);
  options_.columns = {number("a"), label("y"), label("z")};
  EXPECT_THAT(described(values(kOpen, kOpen)).target().shape, ElementsAre(2));
}

TEST_F(Table, ReadsFilesThatDifferInTheOrderAndKindOfNumbers) {
  write("a.csv", "a,y\n1,0\n");
  write("b.csv", "y,a\n1,2.5\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 0}, Row{2.5, 1}));
  write("c.csv", "b,y\n1,0\n");
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("c.csv"));
}

// Types that the first 4 MiB suggest need not be those of the rest.
TEST_F(Table, WidensTypesThatTheBeginningOfATextSuggests) {
  std::string text = "a,empty,y\n";
  while (text.size() < (5U << 20)) text += "1,,0\n";
  write("a.csv", text + "2.5,7,1\n");
  options_.columns = {number("a"), number("empty", Normalise::kNone, Missing::kZero), label("y")};
  const auto dataset = open(classes(2, 2));
  const std::vector<SampleRef> last = {{0, 0, dataset->samples(Split::kTrain) - 1, 0}};
  const Microbatch batch = dataset->microbatch(Split::kTrain, last, 1);
  EXPECT_EQ(batch.tensors[0][0][0].item<float>(), 2.5F);
  EXPECT_EQ(batch.tensors[0][0][1].item<float>(), 7.0F);
}

TEST_F(Table, NormalisesByTheTrainingSideAlone) {
  write("train/a.csv", "a,b,y\n1,10,0\n3,30,1\n");
  write("held/a.csv", "a,b,y\n7,50,0\n");
  options_.files = {folder_ / "train"};
  options_.held_out_files = {folder_ / "held"};
  options_.columns = {number("a", Normalise::kStandard), number("b", Normalise::kMinMax),
                      label("y")};
  const auto dataset = open(classes(2, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{-1, 0, 0}, Row{1, 1, 1}));
  EXPECT_THAT(rows_of(*dataset, Split::kHeldOut), ElementsAre(Row{5, 2, 0}));
  EXPECT_THAT(dataset->description(), HasSubstr("\"shift\": 2.0"));
}

TEST_F(Table, NormalisesAConstantToZero) {
  write("a.csv", "a,b,y\n4,4,0\n4,4,1\n");
  options_.columns = {number("a", Normalise::kStandard), number("b", Normalise::kMinMax),
                      label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{0, 0, 0}, Row{0, 0, 1}));
}

TEST_F(Table, RefusesMoreWordsThanATensorHasNumbers) {
  write("a.csv", "word,y\ndog,0\ncat,1\n");
  const auto ids = [](std::int64_t range) {
    return SampleSpec{{{"ids", at::kLong, {1}, range, "inputs.ids.classes"},
                       {"targets", at::kLong, {}, 2, "output_dim", TensorRole::kTarget}}};
  };
  options_.columns = {column("word", ColumnUse::kCategory), label("y")};
  options_.columns[0].encode = Encode::kIndex;
  EXPECT_THAT(
      error(ids(2)),
      HasSubstr("the column 'word' has 2 words, and a number for those not seen in training; "
                "'ids' takes 0 to 1"));
  EXPECT_THAT(rows_of(*open(ids(3))), ElementsAre(Row{0, 1}, Row{1, 0}));
  options_.columns[0].encode = Encode::kHash;
  options_.columns[0].size = 7;
  EXPECT_THAT(error(ids(6)), HasSubstr("has 7 buckets; 'ids' takes 0 to 5"));
  EXPECT_EQ(rows_of(*open(ids(7))).size(), 2);
}

TEST_F(Table, RefusesAFileOfBothSidesByWhateverPath) {
  write("train/a.csv", "a,y\n1,0\n2,1\n");
  std::filesystem::create_symlink(folder_ / "train", folder_ / "again");
  options_.files = {folder_ / "train"};
  options_.columns = {number("a"), label("y")};
  for (const char* const path : {"train/../train/a.csv", "again/*", "train/a.csv"}) {
    options_.held_out_files = {folder_ / path};
    EXPECT_THAT(error(classes(1, 2)), HasSubstr("is in data.files and in data.held_out_files"));
  }
}

TEST_F(Table, NamesAFileOutsideTheFoldersThatNameAColumn) {
  write("k=x/a.csv", "a,y\n1,0\n");
  write("z.csv", "a,y\n2,1\n");
  options_.files = {folder_ / "**"};
  options_.columns = {number("a"), number("k"), label("y")};
  EXPECT_THAT(error(classes(2, 2)),
              AllOf(HasSubstr("the column 'k' is not in "), HasSubstr("z.csv")));
}

TEST_F(Table, TreatsMissingNumbersByRule) {
  write("a.csv", "a,y\n1,0\n,1\n3,0\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("a.csv', row group 0, row 1: the column 'a' has no value"));
  options_.columns[0].missing = Missing::kZero;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{1, 0}, Row{3, 0}));
  options_.columns[0].missing = Missing::kMean;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 0}, Row{2, 1}, Row{3, 0}));
  options_.columns[0].normalise = Normalise::kStandard;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{-1, 0}, Row{0, 1}, Row{1, 0}));
  options_.columns[0] = number("a", Normalise::kNone, Missing::kSkipRow);
  const auto dataset = open(classes(1, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, 0}, Row{3, 0}));
  EXPECT_THAT(dataset->warnings(), ElementsAre(StartsWith("1 row left out: no value"),
                                               HasSubstr("a model of one class learns nothing")));
}

TEST_F(Table, EncodesCategories) {
  write("train/a.csv", "word,y\ndog,0\ncat,1\n,0\n");
  write("held/a.csv", "word,y\nbird,0\n");
  options_.files = {folder_ / "train"};
  options_.held_out_files = {folder_ / "held"};
  ColumnOptions word = column("word", ColumnUse::kCategory);
  word.missing = Missing::kZero;
  options_.columns = {word, label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{0, 0, 0}, Row{0, 1, 0}, Row{1, 0, 1}));
  EXPECT_THAT(rows_of(*open(classes(2, 2)), Split::kHeldOut), ElementsAre(Row{0, 0, 0}));
  options_.columns[0].encode = Encode::kIndex;  // the last number is for what was not seen
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{1, 0}, Row{2, 0}));
  EXPECT_THAT(rows_of(*open(classes(1, 2)), Split::kHeldOut), ElementsAre(Row{2, 0}));
  options_.columns[0].encode = Encode::kHash;
  options_.columns[0].size = 5;
  for (const Row& row : rows_of(*open(classes(5, 2)), Split::kHeldOut)) {
    EXPECT_EQ(row[0] + row[1] + row[2] + row[3] + row[4], 1);
  }
  options_.columns[0] = word;
  options_.columns[0].size = 1;
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("the column 'word' has 2 words, more than its size = 1"));
}

TEST_F(Table, SortsWholeNumbersByValue) {
  write("a.csv", "n,y\n10,0\n9,1\n-1,0\n");
  ColumnOptions n = column("n", ColumnUse::kCategory);
  n.encode = Encode::kIndex;
  options_.columns = {n, label("y")};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 0}, Row{1, 1}, Row{2, 0}));
}

TEST_F(Table, NumbersLabelsOfWordsInSortedOrder) {
  write("a.csv", "a,y\n1,no\n2,yes\n3,maybe\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(rows_of(*open(classes(1, kOpen))), ElementsAre(Row{1, 1}, Row{2, 2}, Row{3, 0}));
  EXPECT_THAT(open(classes(1, kOpen))->description(),
              HasSubstr("\"maybe\",\n    \"no\",\n    \"yes\""));
}

TEST_F(Table, NamesALabelBeyondTheClasses) {
  write("a.csv", "a,y\n1,0\n2,5\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(error(classes(1, 3)),
              HasSubstr("row group 0, row 1: the column 'y' is 5; the model has classes 0 to 2"));
}

TEST_F(Table, SkipsBadRowsAndCountsThem) {
  write("a.csv", "a,y\n1,0\ninf,1\n2,9\n,1\n4,1\n");
  options_.columns = {number("a"), label("y")};
  options_.on_bad_row = OnBadRow::kSkip;
  const auto dataset = open(classes(1, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, 0}, Row{4, 1}));
  EXPECT_THAT(dataset->warnings(), ElementsAre(HasSubstr("3 bad rows left out, the first at ")));
}

TEST_F(Table, NamesANumberThatItsTensorCannotHold) {
  write("a.csv", "a,y\n1,0\n1e300,1\n2,0\n3,1\n");
  options_.columns = {number("a"), label("y")};
  const std::string told = "row 1: the column 'a' is 1e+300, which is too large for fp32";
  EXPECT_THAT(error(classes(1, 2)), HasSubstr(told));
  options_.columns[0].normalise = Normalise::kStandard;
  EXPECT_THAT(error(classes(1, 2)), HasSubstr(told));
  options_.columns[0].normalise = Normalise::kNone;
  SampleSpec whole = classes(1, 2);
  whole.tensors[0].dtype = at::kLong;
  EXPECT_THAT(error(whole), HasSubstr("'features' takes whole numbers of 64 bits"));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 0}, Row{2, 0}, Row{3, 1}));
  EXPECT_THAT(rows_of(*open(whole)), ElementsAre(Row{1, 0}, Row{2, 0}, Row{3, 1}));
}

TEST_F(Table, NamesTheInfiniteNumberWhereStatisticsAreLearned) {
  write("a.csv", "a,y\n1,0\n2,0\ninf,1\n");
  options_.columns = {number("a", Normalise::kMinMax), label("y")};
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("row 2: the column 'a' is infinite"));
}

TEST_F(Table, SkipsLabelsThatAreNoClasses) {
  write("a.csv", "a,y\n1,0\n2,0.5\n3,1\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(error(classes(1, kOpen)),
              HasSubstr("row 1: the column 'y' is 0.5; a class is a whole number"));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_THAT(rows_of(*open(classes(1, kOpen))), ElementsAre(Row{1, 0}, Row{3, 1}));
}

// They become names in files of predictions.
TEST_F(Table, NamesALabelThatIsNotUtf8) {
  write("a.csv", "a,y\n1,caf\xE9\n2,tea\n3,tea\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(error(classes(1, kOpen)),
              HasSubstr("row 0: the column 'y' is 'caf\\xe9', which is not UTF-8"));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_THAT(rows_of(*open(classes(1, kOpen))), ElementsAre(Row{2, 0}, Row{3, 0}));
}

TEST_F(Table, TakesWholeNumbersWithAPointAsCategories) {
  write("a.csv", "n,y\n10.0,0\n9.0,1\n-0.0,0\n");
  options_.columns = {column("n", ColumnUse::kCategory), label("y")};
  options_.columns[0].encode = Encode::kIndex;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 0}, Row{1, 1}, Row{2, 0}));
  write("a.csv", "n,y\n10.0,0\n9.5,1\n");
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("row 1: the column 'n' is 9.5; a category of numbers takes whole ones"));
}

TEST_F(Table, ReadsTextWithOtherDelimiters) {
  write("A.CSV", "a;y\n1;0\n2;1\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(hint_of([&] { (void)open(classes(1, 2)); }),
              HasSubstr("its header is 'a;y': data.delimiter = \";\" takes it apart"));
  options_.delimiter = ";";
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 0}, Row{2, 1}));
  options_.delimiter = kAutoDelimiter;
  write("A.CSV", "a, y\n1,0\n");
  EXPECT_THAT(hint_of([&] { (void)open(classes(1, 2)); }), HasSubstr("its columns are a, ' y'"));
}

TEST_F(Table, NamesTheWordThatMakesTextOfNumbers) {
  write("a.csv", "a,y\n1,0\n,1\nabc,1\ndef,1\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(hint_of([&] { (void)open(classes(1, 2)); }),
              HasSubstr("row group 0, row 2 has 'abc', which is no number"));
  write("a.csv", "a,y\nabc,0\n");
  EXPECT_THAT(hint_of([&] { (void)open(classes(1, 2)); }), HasSubstr("\"category\" reads words"));
}

TEST_F(Table, FiltersRows) {
  write("a.csv", "a,land,y\n1,DE,0\n2,FR,1\n3,DE,0\n,DE,1\n5,IT,1\n");
  options_.columns = {number("a"), label("y")};
  options_.filter = {{"a", ">", {1.5}, false},
                     {"land", "in", {std::string("DE"), std::string("IT")}, true}};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{3, 0}, Row{5, 1}));
  options_.filter = {{"land", "not in", {std::string("DE")}, true}};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{2, 1}, Row{5, 1}));
  options_.filter = {{"land", "<", {std::string("E")}, false},
                     {"a", "!=", {std::int64_t{3}}, false}};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 0}));
  options_.filter = {{"land", "=", {std::int64_t{3}}, false}};
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("filter compares the column 'land', which is string"));
  options_.filter = {{"land", "=", {std::string("XX")}, false}};
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("no row is left to train on"));
}

TEST_F(Table, TakesTheSidesFromAColumn) {
  write("a.csv", "a,side,y\n1,train,0\n2,validation,1\n3,test,0\n4,train,1\n5,other,1\n");
  options_.columns = {number("*"), label("y")};
  options_.split_column = "side";
  const auto dataset = open(classes(1, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, 0}, Row{4, 1}));
  EXPECT_THAT(rows_of(*dataset, Split::kHeldOut), ElementsAre(Row{2, 1}));
  options_.filter = {{"side", "!=", {std::string("validation")}, false}};
  EXPECT_THAT(rows_of(*open(classes(1, 2)), Split::kHeldOut), ElementsAre(Row{3, 0}));
}

TEST_F(Table, ReadsFoldersAsSparkLeavesThem) {
  write("year=2024/part-0.csv", "a,y\n1,0\n");
  write("year=2025/part-0.csv", "a,y\n2,1\n");
  write("_SUCCESS", "x");
  write(".part-0.csv.crc", "x");
  write("_temporary/part-1.csv", "not,a\ntable\n");
  options_.files = {folder_ / ""};
  options_.columns = {number("a"), number("year"), label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{1, 2024, 0}, Row{2, 2025, 1}));
  options_.columns = {number("*"), label("y")};  // a column of the files
  options_.filter = {{"year", ">", {std::int64_t{2024}}, false}};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{2, 1}));
}

TEST_F(Table, HoldsOutTheSameRowsWithAnySeed) {
  std::string text = "a,y\n";
  for (int i = 0; i < 1000; ++i) text += std::to_string(i) + ",0\n";
  write("a.csv", text);
  options_.columns = {number("a"), label("y")};
  options_.held_out_fraction = 0.2;
  const auto one = open(classes(1, 1), 1), two = open(classes(1, 1), 2);
  EXPECT_NEAR(static_cast<double>(one->samples(Split::kHeldOut)), 200, 40);
  EXPECT_EQ(rows_of(*one, Split::kHeldOut), rows_of(*two, Split::kHeldOut));
  EXPECT_EQ(one->at(Split::kHeldOut, 3), two->at(Split::kHeldOut, 3));
  EXPECT_NE(one->at(Split::kTrain, 3), two->at(Split::kTrain, 3));
  EXPECT_EQ(one->fingerprint(), two->fingerprint());
  options_.held_out_fraction = 0.3;
  EXPECT_NE(open(classes(1, 1))->fingerprint(), one->fingerprint());
  for (const Row& row : rows_of(*one, Split::kHeldOut)) {
    const std::vector<Row> more = rows_of(*open(classes(1, 1)), Split::kHeldOut);
    if (!std::ranges::binary_search(more, row)) ADD_FAILURE() << row[0];
    break;
  }
}

// Some 8 windows of 2 groups, with a cache of 1 MiB for 65,536 rows of 12 bytes each.
TEST_F(Table, DecodesEachGroupOnceAPass) {
  std::string text = "a,y\n";
  for (int i = 0; i < 400000; ++i) text += std::to_string(i % 97) + ",0\n";
  write("a.csv", text);
  options_.columns = {number("a"), label("y")};
  options_.cache_mb = 2;
  const auto dataset = open(classes(1, 1));
  const std::int64_t groups = (400000 + 65535) / 65536;
  for (int pass = 1; pass <= 2; ++pass) {
    for (std::int64_t i = 0; i < 400000; i += 1000) {
      std::vector<SampleRef> samples;
      for (std::int64_t k = i; k < i + 1000; ++k) {
        samples.push_back(dataset->at(Split::kTrain, (pass - 1) * 400000 + k));
      }
      (void)dataset->microbatch(Split::kTrain, samples, 1);
    }
    // The first window of the next pass may have been read ahead.
    EXPECT_LE(dataset->decoded_groups(Split::kTrain), groups * pass + groups / 2);
  }
}

TEST_F(Table, NamesWhatIsWrong) {
  write("a.csv", "amount,word,y\n1,x,0\n");
  options_.columns = {number("amuont"), label("y")};
  EXPECT_THAT(error(classes(kOpen, kOpen)), HasSubstr("there is no column 'amuont' in "));
  options_.columns = {number("word"), label("y")};
  EXPECT_THAT(error(classes(kOpen, kOpen)),
              HasSubstr("is string; as = \"number\" expects numbers"));
  options_.columns = {number("amount"), label("y")};
  EXPECT_THAT(error(classes(4, 2)),
              HasSubstr("the columns of 'features' give 1 number a sample, and the model takes 4"));
  options_.columns = {number("amount"), number("none*"), label("y")};
  EXPECT_THAT(error(classes(kOpen, 2)), HasSubstr("matches 'none*'"));
  write("b.csv", "amount,y\n1,0\n2\n");
  options_.columns = {number("amount"), label("y")};
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("cannot read the table '" + (folder_ / "b.csv").string()));
}

SampleSpec with_weights(SampleSpec sample) {
  sample.allow_weights();
  return sample;
}

TEST_F(Table, SaysWhatASampleWeighs) {
  write("a.csv", "a,w,y\n1,0.5,0\n2,3,1\n3,,1\n");
  options_.columns = {number("a"), column("w", ColumnUse::kWeight), label("y")};
  options_.columns[1].missing = Missing::kZero;
  const auto dataset = open(with_weights(classes(kOpen, kOpen)));
  const Microbatch batch = build_microbatches(*dataset, Split::kTrain, {0, 3}, 3, 1).front();
  const at::Tensor& weights = batch.tensors.at(kSampleWeights);
  EXPECT_EQ(weights.scalar_type(), at::kDouble);
  EXPECT_EQ(batch.tensors[0].sizes(), at::IntArrayRef({3, 1}));  // it is no feature
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::array expected = {0.5, 3.0, 0.0};
    const auto row = static_cast<std::size_t>(batch.tensors[0][i].item<float>() - 1);
    EXPECT_EQ(weights[i].item<double>(), expected[row]);
  }
  options_.columns[1].missing = Missing::kError;
  EXPECT_THAT(error(with_weights(classes(1, 2))), HasSubstr("row 2: the column 'w' has no value"));
  write("a.csv", "a,w,y\n1,0.5,0\n2,-3,1\n");
  EXPECT_THAT(error(with_weights(classes(1, 2))),
              HasSubstr("row 1: the column 'w' is -3.0; a sample weighs 0 or more"));
}

TEST_F(Table, LeavesWeightsOutWhereNoColumnGivesThem) {
  write("a.csv", "a,y\n1,0\n2,1\n");
  options_.columns = {number("a"), label("y")};
  const auto dataset = open(with_weights(classes(1, 2)));
  EXPECT_EQ(build_microbatches(*dataset, Split::kTrain, {0, 2}, 2, 1).front().tensors.size(), 2U);
}

TEST_F(Table, RefusesWeightsThatNothingTakes) {
  options_.columns = {number("a"), column("w", ColumnUse::kWeight), label("y")};
  const auto refusal = [&](const SampleSpec& sample) {
    return message_of<UsageError>([&] {
      table_kind().check(Options(options_), Origins());
      table_kind().check_model(Options(options_), sample, "gpt", Origins());
    });
  };
  EXPECT_THAT(refusal(classes(1, 2)), HasSubstr("columns.w: as = \"weight\" weighs samples"));
  options_.columns.push_back(column("v", ColumnUse::kWeight));
  EXPECT_THAT(refusal(with_weights(classes(1, 2))),
              HasSubstr("columns.v: 'w' already says what a sample weighs"));
  options_.columns[1].into = "features";
  EXPECT_THAT(refusal(with_weights(classes(1, 2))), HasSubstr("into is not for as = \"weight\""));
}

// 90 rows of the class 0, 9 of the class 1 and 1 of the third, which is called 4, sorted by class.
TEST_F(Table, BalancesClasses) {
  std::string text = "id,y\n";
  for (int i = 0; i < 100; ++i) {
    text += std::to_string(i) + "," + (i < 90 ? "0" : i < 99 ? "1" : "4") + "\n";
  }
  write("a.csv", text);
  options_.columns = {number("id"), label("y")};
  options_.balance_classes = true;
  const auto dataset = open(classes(1, kOpen)), same = open(classes(1, kOpen));
  std::map<std::int64_t, std::map<float, int>> seen;
  const Microbatch batch = build_microbatches(*dataset, Split::kTrain, {0, 270}, 270, 1).front();
  const Microbatch second = build_microbatches(*same, Split::kTrain, {100, 50}, 50, 1).front();
  EXPECT_TRUE(at::equal(batch.tensors[0].narrow(0, 100, 50), second.tensors[0]));
  for (std::int64_t i = 0; i < 270; ++i) {
    ++seen[batch.tensors[1][i].item<std::int64_t>()][batch.tensors[0][i].item<float>()];
    EXPECT_EQ(batch.sample_ids[i].item<std::int64_t>(), i);
  }
  EXPECT_EQ(seen[0].size(), 90U);  // each row once, in as many turns
  EXPECT_EQ(seen[1].size(), 9U);
  for (const auto& [id, count] : seen[1]) EXPECT_EQ(count, 10);
  EXPECT_THAT(seen[2], ElementsAre(std::pair(99.0F, 90)));
  EXPECT_EQ(dataset->samples(Split::kTrain), 100);
}

TEST_F(Table, BalancesTheClassesOfOneLabelAlone) {
  write("a.csv", "a,y,z\n1,0,1\n2,1,0\n");
  options_.balance_classes = true;
  options_.columns = {number("a"), label("y"), label("z")};
  SampleSpec answers = values(1, 2);
  EXPECT_THAT(message_of<UsageError>(
                  [&] { table_kind().check_model(Options(options_), answers, "mlp", Origins()); }),
              HasSubstr("balance_classes: 'targets' has no classes"));
  answers.tensors[1].range = 2;
  EXPECT_THAT(error(answers), HasSubstr("balances the classes of one label; there are 2 columns"));
}

TEST_F(Table, TakesASplitColumnOfNumbers) {
  write("a.csv", "a,side,y\n1,0.0,0\n2,1.0,1\n3,0.5,0\n4,,1\n");
  options_.columns = {number("a"), label("y")};
  options_.split_column = "side";
  const auto dataset = open(classes(1, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, 0}));
  EXPECT_THAT(rows_of(*dataset, Split::kHeldOut), ElementsAre(Row{2, 1}));
}

TEST_F(Table, ReadsLongText) {
  const std::string text(6 << 20, 'x');  // longer than what is read at a time
  write("a.csv", "word,n,y\nshort,1,0\n" + text + "," + text + ",1\n");
  ColumnOptions word = column("word", ColumnUse::kCategory);
  word.encode = Encode::kHash;
  word.size = 3;
  options_.columns = {word, label("y")};
  EXPECT_EQ(rows_of(*open(classes(3, 2))).size(), 2U);
  options_.columns = {number("n"), label("y")};
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("'n' of"));
}

TEST_F(Table, ReadsBytesThatAreNoText) {
  write("a.csv", "word,y\na,0\n\xFF\xFE,1\n");
  ColumnOptions word = column("word", ColumnUse::kCategory);
  options_.columns = {word, label("y")};
  EXPECT_EQ(rows_of(*open(classes(2, 2))).size(), 2U);
}

TEST_F(Table, NamesAColumnThatIsThereTwice) {
  write("a.csv", "a,a,y\n1,2,0\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(error(classes(kOpen, 2)), HasSubstr("a.csv' are called 'a'"));
}

}  // namespace
}  // namespace troika
