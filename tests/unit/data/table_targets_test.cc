// Columns that go into targets: numbers of classes, values with a unit, lists, and gaps.
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/table/table_description.h>
#include <unit/data/table_support.h>

#include <cmath>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsNan;

class TableTargets : public Table {
 protected:
  static SampleSpec answers(std::int64_t outputs) {
    return {{{"features", at::kFloat, {1}},
             {"targets", at::kFloat, {outputs}, 2, {}, TensorRole::kTarget}}};
  }
  static SampleSpec pixels(std::int64_t count, std::int64_t range) {
    return {{{"features", at::kFloat, {1}},
             {"y", at::kLong, {count}, range, "targets.y.classes", TensorRole::kTarget}}};
  }
  std::int64_t classes_of(const SampleSpec& sample) {
    return table_kind().describe(Options(options_), sample, Origins())->target().range;
  }
};

TEST_F(TableTargets, WholeNumbersNameClasses) {
  write("a.csv", "a,y\n1,300\n2,-1\n3,100\n4,100.0\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_EQ(classes_of(classes(1, kOpen)), 3);
  for (const std::int64_t said : {kOpen, std::int64_t{3}}) {  // a recipe has them once resolved
    const auto dataset = open(classes(1, said));
    EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, 2}, Row{2, 0}, Row{3, 1}, Row{4, 1}));
    EXPECT_THAT(dataset->target_names(), ElementsAre("-1", "100", "300"));
  }
}

TEST_F(TableTargets, AnIgnoredClassIsNoClass) {
  for (const char* const text :
       {"a,y\n1,2\n2,-100\n3,0\n4,1\n", "a,y\n1,2.0\n2,-100.0\n3,0\n4,1\n"}) {
    write("a.csv", text);
    for (const std::int64_t said : {kOpen, std::int64_t{3}, std::int64_t{4}}) {
      options_.columns = {number("a"), label("y")};
      EXPECT_THAT(error(classes(1, said)),
                  HasSubstr("row 1: the column 'y' is -100, which stands for an ignored target"));
      options_.columns[1].missing = Missing::kIgnore;
      EXPECT_THAT(rows_of(*open(classes(1, said))),
                  ElementsAre(Row{1, 2}, Row{2, kIgnoredTarget}, Row{3, 0}, Row{4, 1}));
    }
  }
  EXPECT_EQ(classes_of(classes(1, kOpen)), 3);
  write("a.csv", "a,y\n1,1\n2,-100\n3,0\n");
  EXPECT_THAT(rows_of(*open(answers(1)))[1], ElementsAre(2, IsNan()));
  options_.columns[1].missing = Missing::kError;
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_THAT(rows_of(*open(classes(1, kOpen))), ElementsAre(Row{1, 1}, Row{3, 0}));
  options_.columns[1].type = TextType::kText;  // a name that the user has chosen
  EXPECT_THAT(open(classes(1, kOpen))->target_names(), ElementsAre("-100", "0", "1"));
  options_.columns[1].type = TextType::kAuto;
  EXPECT_THAT(rows_of(*open(values(1, 1)))[1], ElementsAre(2, -100));
}

TEST_F(TableTargets, OneClassIsWarnedOf) {
  options_.columns = {number("a"), label("y")};
  for (const char* const value : {"only", "true", "7", "0", "1970-01-01"}) {
    write("a.csv", std::string("a,y\n1,") + value + "\n2," + value + "\n");
    EXPECT_THAT(
        open(classes(1, kOpen))->warnings(),
        ElementsAre(HasSubstr(std::string("the label 'y' is '") + value + "' in every row")));
  }
  write("a.csv", "a,y\n1,0\n2,0\n");
  EXPECT_EQ(open(classes(1, 3))->warnings().size(), 1);
  EXPECT_EQ(open(answers(1))->warnings().size(), 1);
  EXPECT_THAT(open(values(1, 1))->warnings(), IsEmpty());
  write("a.csv", "a,y\n1,0\n2,1\n");
  EXPECT_THAT(open(classes(1, kOpen))->warnings(), IsEmpty());
}

TEST_F(TableTargets, WholeNumbersFromZeroOnAreClasses) {
  write("a.csv", "a,y\n1,2\n2,0\n3,1\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_EQ(classes_of(classes(1, kOpen)), 3);
  EXPECT_THAT(open(classes(1, kOpen))->target_names(), IsEmpty());
  EXPECT_THAT(rows_of(*open(classes(1, 9))), ElementsAre(Row{1, 2}, Row{2, 0}, Row{3, 1}));
  write("a.csv", "a,y\n1,2\n2,0\n3,7\n");
  EXPECT_THAT(rows_of(*open(classes(1, 9))), ElementsAre(Row{1, 2}, Row{2, 0}, Row{3, 7}));
  EXPECT_THAT(error(classes(1, 5)), HasSubstr("is 7; the model has classes 0 to 4"));
}

TEST_F(TableTargets, NumbersOfClassesAreThoseOfTraining) {
  write("a.csv", "a,y\n1,300\n2,100\n");
  options_.columns = {number("a"), label("y")};
  const SampleSpec sample = classes(1, 2);
  const TrainedData trained{open(sample)->description(), SampleUse::kEvaluate};
  write("a.csv", "a,y\n1,100\n");
  const TableDataset other(options_, sample, 1, &trained);
  EXPECT_THAT(rows_of(other), ElementsAre(Row{1, 0}));
  write("a.csv", "a,y\n1,200\n");
  const TableDataset third(options_, sample, 1, &trained);
  EXPECT_THAT(message_of([&] { (void)rows_of(third); }),
              HasSubstr("the column 'y' is '200', which is none of the 2 classes of training"));
}

TEST_F(TableTargets, BadRowsAreSkippedAmongNumbersOfClasses) {
  write("a.csv", "a,y\n1,300\n2,100\n3,0.5\n");
  options_.columns = {number("a"), label("y")};
  options_.on_bad_row = OnBadRow::kSkip;
  for (const std::int64_t said : {kOpen, std::int64_t{2}}) {
    EXPECT_THAT(rows_of(*open(classes(1, said))), ElementsAre(Row{1, 1}, Row{2, 0}));
  }
}

TEST_F(TableTargets, TwoWholeNumbersAreAnswers) {
  write("a.csv", "a,y\n1,-1\n2,1\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(rows_of(*open(answers(1))), ElementsAre(Row{1, 0}, Row{2, 1}));
  write("a.csv", "a,y\n1,1\n2,1\n");
  EXPECT_THAT(rows_of(*open(answers(1))), ElementsAre(Row{1, 1}, Row{2, 1}));
  write("a.csv", "a,y\n1,1\n2,2\n3,3\n");
  EXPECT_THAT(error(answers(1)), HasSubstr("is 2; an answer is 0 or 1"));
}

TEST_F(TableTargets, ValuesAreNormalisedByTheTrainingSide) {
  write("train/a.csv", "a,y,z\n1,100,1\n2,300,3\n");
  write("held/a.csv", "a,y,z\n3,500,5\n");
  options_.files = {folder_ / "train"};
  options_.held_out_files = {folder_ / "held"};
  options_.columns = {number("a"), label("y"), label("z")};
  EXPECT_THAT(open(values(1, 2))->target_scales(), IsEmpty());
  options_.columns[1].normalise = Normalise::kStandard;
  const auto dataset = open(values(1, 2));
  EXPECT_THAT(rows_of(*dataset), ElementsAre(Row{1, -1, 1}, Row{2, 1, 3}));
  EXPECT_THAT(rows_of(*dataset, Split::kHeldOut), ElementsAre(Row{3, 3, 5}));
  const at::Tensor numbers = at::tensor({-1.F, 1.F, 3.F, 5.F}).view({2, 2});
  const at::Tensor own = in_own_unit(numbers, dataset->target_scales());
  EXPECT_TRUE(at::equal(own, at::tensor({100., 1., 500., 5.}).view({2, 2})));
  const TrainedData trained{dataset->description(), SampleUse::kPredict};
  options_.held_out_files = {};
  EXPECT_EQ(TableDataset(options_, values(1, 2), 1, &trained).target_scales()[0].shift, 200);
}

TEST_F(TableTargets, OnlyTheFirstTargetIsJudgedInItsUnit) {
  write("a.csv", "a,y,z\n1,100,1\n2,300,3\n");
  options_.columns = {number("a"), label("y"), label("z")};
  options_.columns[1].normalise = options_.columns[2].normalise = Normalise::kStandard;
  options_.columns[2].into = "second";
  SampleSpec two = values(1, 1);
  two.tensors.push_back({"second", at::kFloat, {1}, 0, {}, TensorRole::kTarget});
  const std::vector<ValueScale> scales = open(two)->target_scales();
  ASSERT_EQ(scales.size(), 1U);
  EXPECT_EQ(scales[0].shift, 200);
  EXPECT_EQ(scales[0].scale, 0.01);
}

TEST_F(TableTargets, ClassesHaveNoUnit) {
  options_.columns = {number("a"), label("y")};
  options_.columns[1].normalise = Normalise::kMinMax;
  const auto refused = [&](const SampleSpec& sample) {
    return message_of<UsageError>(
        [&] { table_kind().check_model(Options(options_), sample, "mlp", Origins()); });
  };
  EXPECT_THAT(refused(classes(1, 2)), HasSubstr("normalise is for numbers, and 'targets' takes"));
  EXPECT_THAT(refused(answers(1)), HasSubstr("normalise is for numbers, and 'targets' takes"));
}

TEST_F(TableTargets, GapsCountForNothing) {
  write("a.csv", "a,y,z\n1,1,\n2,,0\n");
  options_.columns = {number("a"), label("y"), label("z")};
  EXPECT_THAT(error(answers(2)), HasSubstr("the column 'y' has no value"));
  options_.columns[1].missing = options_.columns[2].missing = Missing::kIgnore;
  const auto rows = rows_of(*open(answers(2)));
  EXPECT_THAT(rows[0], ElementsAre(1, 1, IsNan()));
  EXPECT_THAT(rows[1], ElementsAre(2, IsNan(), 0));
  options_.columns.pop_back();
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{1, 1}, Row{2, kIgnoredTarget}));
  options_.columns[0].missing = Missing::kIgnore;
  EXPECT_THAT(message_of<UsageError>([&] { table_kind().check(Options(options_), Origins()); }),
              HasSubstr("missing = \"ignore\" is for labels, not for as = \"number\""));
}

}  // namespace
}  // namespace troika
