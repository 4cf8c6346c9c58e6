#include <troika/data/sources/table/table_description.h>
#include <unit/data/table_support.h>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Other tables for a model that was trained on the files of "train".
class TableDescription : public Table {
 protected:
  void train(const std::string& text, const SampleSpec& sample) {
    write("train/a.csv", text);
    options_.files = {folder_ / "train"};
    sample_ = sample;
    description_ = open(sample)->description();
    options_.files = {folder_ / "other"};
  }
  std::unique_ptr<TableDataset> other(SampleUse use = SampleUse::kPredict) {
    const TrainedData trained{description_, use};
    return std::make_unique<TableDataset>(options_, sample_, 1, &trained);
  }
  // Features in the order of the table, and the rows' numbers.
  std::vector<Row> rows() {
    const auto dataset = other();
    std::vector<Row> all;
    for (std::int64_t i = 0; i < dataset->samples(Split::kTrain); ++i) {
      const std::vector<SampleRef> place = {dataset->at(Split::kTrain, i)};
      const Microbatch batch = dataset->microbatch(Split::kTrain, place, 1);
      const at::Tensor row = batch.tensors[0].flatten().to(at::kDouble);
      all.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
      all.back().push_back(batch.sample_ids.item<double>());
    }
    return all;
  }
  std::string other_error() {
    return message_of([&] { (void)rows(); });
  }

  SampleSpec sample_;
  std::string description_;
};

TEST_F(TableDescription, IsTheSameAfterItWasRead) {
  options_.columns = {number("a", Normalise::kStandard, Missing::kMean),
                      number("b", Normalise::kMinMax, Missing::kZero),
                      column("word", ColumnUse::kCategory), column("bin", ColumnUse::kCategory),
                      label("y")};
  options_.columns[3].encode = Encode::kHash;
  options_.columns[3].size = 5;
  train("a,b,word,bin,y\n0.1,2,x,k,no\n0.7,5,\"\xFF\xFE\",k,yes\n", classes(9, 2));
  const TablePlan plan = read_description(description_, sample_);
  EXPECT_EQ(plan.describe(), description_);
  EXPECT_THAT(plan.columns[2].words, ElementsAre("x", "\xFF\xFE"));
  EXPECT_THAT(plan.target_names(), ElementsAre("no", "yes"));
}

TEST_F(TableDescription, EncodesColumnsByNameAndStatistics) {
  options_.columns = {number("a", Normalise::kStandard, Missing::kMean),
                      column("word", ColumnUse::kCategory), label("y")};
  train("y,a,word\n0,1,x\n1,3,y\n", classes(3, 2));
  write("other/a.csv", "more,word,a\n9,y,7\n9,x,\n");
  write("other/b.csv", "a,word\n2,y\n");
  EXPECT_THAT(rows(), ElementsAre(Row{5, 0, 1, 0}, Row{0, 1, 0, 1}, Row{0, 0, 1, 2}));
}

TEST_F(TableDescription, CountsRowsThatAreLeftOut) {
  options_.columns = {number("a", Normalise::kNone, Missing::kSkipRow), label("y")};
  train("a,y\n1,0\n2,1\n", classes(1, 2));
  write("other/a.csv", "a,b\n5,\n,1\n7,\n");
  EXPECT_THAT(rows(), ElementsAre(Row{5, 0}, Row{7, 2}));
}

TEST_F(TableDescription, TellsOfWordsThatWereNotThere) {
  options_.columns = {column("word", ColumnUse::kCategory), label("y")};
  train("word,y\n7,0\n8a,1\n", classes(2, 2));
  write("other/a.csv", "word\n7\n9\n9\n");  // whole numbers, spelled as the words were
  const auto dataset = other();
  EXPECT_THAT(dataset->notes(), IsEmpty());
  const std::vector<SampleRef> all = {dataset->at(Split::kTrain, 0), dataset->at(Split::kTrain, 1)};
  const at::Tensor features = dataset->microbatch(Split::kTrain, all, 1).tensors[0];
  EXPECT_TRUE(at::equal(features, at::tensor({1.F, 0.F, 0.F, 0.F}).view({2, 2})));
  EXPECT_THAT(dataset->notes(),
              ElementsAre(HasSubstr("2 rows with a word in 'word' that was not there in training, "
                                    "the first '9'")));
}

TEST_F(TableDescription, NamesWhatDoesNotGoWithIt) {
  options_.columns = {number("amount"), column("flag", ColumnUse::kCategory), label("y")};
  train("amount,flag,y\n1,true,0\n2,false,1\n", classes(3, 2));
  write("other/a.csv", "amuont,flag\n1,true\n");
  EXPECT_THAT(other_error(), HasSubstr("there is no column 'amount' in "));
  write("other/a.csv", "amount,flag\nmuch,true\n");
  EXPECT_THAT(other_error(), HasSubstr("is string; the model has learned it as int64"));
  write("other/a.csv", "amount,flag\n1,1\n");
  EXPECT_THAT(other_error(), HasSubstr("is int64; the model has learned it as bool"));
  write("other/a.csv", "amount,flag\n1,true\n,true\n");
  EXPECT_THAT(other_error(), HasSubstr("row 1: the column 'amount' has no value"));
}

TEST_F(TableDescription, ReadsDatesAndTimesInTheUnitOfTraining) {
  options_.columns = {number("at"), label("y")};
  train("at,y\n1970-01-03 00:00:00,0\n1970-01-02 00:00:01,1\n", classes(1, 2));  // seconds
  write("other/a.csv", "at\n1970-01-02 00:00:01.250\n1969-12-31 23:59:59.5\n");  // nanoseconds
  EXPECT_THAT(rows(), ElementsAre(Row{86401, 0}, Row{-1, 1}));
  write("other/a.csv", "at\n1970-01-03\n");  // days
  EXPECT_THAT(rows(), ElementsAre(Row{172800, 0}));
  write("other/a.csv", "at\n17:30:00\n");
  EXPECT_THAT(other_error(), HasSubstr("is time32[s]; the model has learned it as timestamp[s]"));
  write("other/a.csv", "at\n7\n");
  EXPECT_THAT(other_error(), HasSubstr("is int64; the model has learned it as timestamp[s]"));
}

TEST_F(TableDescription, ReadsWordsOfDaysInTheUnitOfTraining) {
  options_.columns = {column("day", ColumnUse::kCategory), label("y")};
  train("day,y\n1970-01-03,0\n1970-01-02,1\n", classes(2, 2));
  write("other/a.csv", "day\n1970-01-02 12:30:00\n");
  EXPECT_THAT(rows(), ElementsAre(Row{1, 0, 0}));
  write("other/a.csv", "day\nTuesday\n");
  EXPECT_THAT(other_error(), HasSubstr("row 0: the column 'day' is 'Tuesday', which is no time"));
}

TEST_F(TableDescription, NamesATimeThatDoesNotFitTheUnitOfTraining) {
  options_.columns = {number("at"), label("y")};
  train("at,y\n1970-01-03 00:00:00.5,0\n1970-01-02 00:00:01.5,1\n", classes(1, 2));
  write("other/a.csv", "at\n1971-01-01\n9999-12-31\n");
  EXPECT_THAT(other_error(), HasSubstr("row 1: the column 'at' is 2932896, which is too large as "
                                       "timestamp[ns]"));
}

TEST_F(TableDescription, RefusesWhatIsDamaged) {
  options_.columns = {number("a"), label("y")};
  train("a,y\n1,0\n2,1\n", classes(1, 2));
  const std::string whole = description_;
  const auto error = [&](const std::string& text) {
    return message_of([&] { (void)read_description(text, sample_); });
  };
  EXPECT_THAT(error(whole.substr(0, whole.size() / 2)), HasSubstr("data.json of the run is dam"));
  EXPECT_THAT(error("{}"), HasSubstr("data.json of the run is damaged"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(error(with("\"number\"", "\"letter\"")), HasSubstr("has 'letter'"));
  EXPECT_THAT(error(with("\"into\": \"features\"", "\"into\": \"pixels\"")),
              HasSubstr("the column 'a' goes into 'pixels'"));
  sample_ = classes(4, 2);
  EXPECT_THAT(error(whole), HasSubstr("give 1 number a sample, and the model takes 4"));
}

}  // namespace
}  // namespace troika
