// Dates and times in tables: text of JSON Lines that looks like dates, formats, parts, names.
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/table/time_literal.h>
#include <troika/data/sources/table/time_text.h>
#include <unit/data/table_support.h>

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TableTimes : public Table {
 protected:
  static ColumnOptions written(const std::string& name, const std::string& format,
                               ColumnUse as = ColumnUse::kNumber) {
    ColumnOptions options = column(name, as);
    options.format = format;
    return options;
  }
  static ColumnOptions timestamp(const std::string& name) {
    ColumnOptions options = number(name);
    options.type = TextType::kTimestamp;
    return options;
  }
  std::string refusal() {
    return message_of<UsageError>([&] { table_kind().check(Options(options_), Origins()); });
  }
};

TEST(TimeLiteral, ReadsWhatItWrites) {
  struct Case {
    std::int64_t number;
    const char *type, *text;
  };
  for (const Case& each : std::initializer_list<Case>{
           {19723, "date32[day]", "2024-01-01"},
           {-1, "date64[ms]", "1969-12-31"},
           {1704067200, "timestamp[s]", "2024-01-01 00:00:00"},
           {-500, "timestamp[ms]", "1969-12-31 23:59:59.5"},
           {1584057600000001, "timestamp[us, tz=UTC]", "2020-03-13 00:00:00.000001Z"},
           {86399, "time32[s]", "23:59:59"}}) {
    EXPECT_EQ(text_of_time(each.number, each.type), each.text);
    if (each.number == -1) continue;  // no whole day of milliseconds
    EXPECT_EQ(time_in_unit(each.text, each.type), each.number) << each.text;
  }
  EXPECT_EQ(text_of_time(5, "duration[s]"), std::nullopt);
  EXPECT_EQ(time_in_unit("2024-01-01T01:00:00+01:00", "timestamp[s]"), 1704067200);
  EXPECT_EQ(time_in_unit("2023-12-31 18:30:00-0530", "timestamp[s]"), 1704067200);
  EXPECT_EQ(time_in_unit("2024-01-01 00:00:00+1:00", "timestamp[s]"), std::nullopt);
}

TEST(TimeText, ReadsTheFormatsOfPeople) {
  const TimeText german("%d.%m.%Y"), american("%m/%d/%y %H:%M"), iso(kIsoTime);
  EXPECT_EQ(german("13.03.2020"), 18334);
  EXPECT_STREQ(german.type_name(), "date32[day]");
  EXPECT_EQ(american("03/13/20 12:30"), 1584102600000000);
  EXPECT_EQ(iso("2020-03-13"), 1584057600000000);
  for (const char* const wrong : {"31.02.2020", "13.03.2020 ", "2020-03-13", "13.13.2020", ""}) {
    EXPECT_EQ(german(wrong), std::nullopt) << wrong;
  }
  EXPECT_THAT(TimeText::refusal_of("%d.%m."), HasSubstr("has no year"));
  EXPECT_THAT(TimeText::refusal_of("%%Y"), HasSubstr("has no year"));
  EXPECT_EQ(TimeText::refusal_of("%EY-%m"), "");
}

// One file has dates alone, and the other not: both are text.
TEST_F(TableTimes, StringsOfJsonAreText) {
  write("a.jsonl", "{\"d\":\"2024-01-01\",\"y\":0}\n{\"d\":\"2024-01-02 12:00:00\",\"y\":1}\n");
  write("b.jsonl", "{\"d\":\"unknown\",\"y\":1}\n");
  options_.columns = {column("d", ColumnUse::kCategory), label("y")};
  EXPECT_THAT(rows_of(*open(classes(3, 2))),
              ElementsAre(Row{0, 0, 1, 1}, Row{0, 1, 0, 1}, Row{1, 0, 0, 0}));
  options_.files = {folder_ / "a.jsonl"};
  EXPECT_THAT(open(classes(2, 2))->description(), HasSubstr("\"2024-01-02 12:00:00\""));
}

TEST_F(TableTimes, StringsInListsAndStructsOfJsonAreText) {
  write("a.jsonl", "{\"s\":{\"d\":\"2024-01-01\"},\"l\":[\"2024-01-01\"],\"a\":1,\"y\":0}\n");
  write("b.jsonl", "{\"s\":{\"d\":\"never\"},\"l\":[\"never\"],\"a\":2,\"y\":1}\n");
  options_.columns = {column("s.d", ColumnUse::kCategory), label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{0, 1, 1}, Row{1, 0, 0}));
}

TEST_F(TableTimes, StringsOfJsonAreTimesWhereTheRecipeSaysSo) {
  write("a.jsonl",
        "{\"d\":\"1970-01-02\",\"y\":0}\n{\"d\":\"1970-01-01T01:00:00+01:00\",\"y\":1}\n");
  options_.columns = {number("d"), label("y")};
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("is string; as = \"number\" expects numbers"));
  options_.columns[0] = timestamp("d");
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{86400e6, 0}));
  write("b.jsonl", "{\"d\":\"soon\",\"y\":1}\n");
  EXPECT_THAT(error(classes(1, 2)),
              HasSubstr("b.jsonl', row group 0, row 0: the column 'd' is 'soon', which is no time "
                        "written as 2024-01-05"));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{86400e6, 0}));
}

TEST_F(TableTimes, AGlobOfTimesLeavesNamedColumnsAlone) {
  write("a.jsonl", "{\"d\":\"1970-01-02\",\"y\":\"no\"}\n{\"d\":\"1970-01-01\",\"y\":\"yes\"}\n");
  options_.columns = {timestamp("*"), label("y")};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{86400e6, 0}));
}

TEST_F(TableTimes, AFormatSaysHowDatesAreWritten) {
  write("a.csv", "d,y\n13.03.2020,0\n,1\n01.01.1970,1\n");
  options_.columns = {written("d", "%d.%m.%Y"), label("y")};
  options_.columns[0].missing = Missing::kZero;
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{0, 1}, Row{0, 1}, Row{18334, 0}));
  options_.filter = {{"d", ">=", {Literal(std::string("2020-01-01"))}}};
  EXPECT_THAT(rows_of(*open(classes(1, 2))), ElementsAre(Row{18334, 0}));
  options_.filter.clear();
  write("a.csv", "d,y\n13.03.2020,0\n31.02.2020,1\n");
  EXPECT_THAT(error(classes(1, 2)),
              AllOf(HasSubstr("row 1: the column 'd' is '31.02.2020'"), HasSubstr("'%d.%m.%Y'")));
}

TEST_F(TableTimes, PartsAreColumns) {
  write("a.csv", "d,t,y\n2020-03-13,2020-12-31 23:05:09,0\n1969-07-21,1969-12-31 00:00:01,1\n");
  options_.columns = {number("d.year"),    number("d.month"),       number("d.day"),
                      number("d.weekday"), number("t.day_of_year"), number("t.hour"),
                      number("t.minute"),  number("t.second"),      label("y")};
  EXPECT_THAT(rows_of(*open(classes(8, 2))), ElementsAre(Row{1969, 7, 21, 0, 365, 0, 0, 1, 1},
                                                         Row{2020, 3, 13, 4, 366, 23, 5, 9, 0}));
  options_.columns = {number("*"), label("y")};  // a glob finds what the files have
  EXPECT_THAT(open(classes(2, 2))->contents(), ElementsAre("features [2]: d, t", "targets []: y"));
  options_.columns = {number("d.hour"), label("y")};
  EXPECT_THAT(error(classes(1, 2)), HasSubstr("there is no column 'd.hour'"));
}

TEST_F(TableTimes, PartsOfDatesThatAreLeftOut) {
  write("a.csv", "d,y\n13.03.2020,0\n14.03.2020,1\n");
  options_.columns = {written("d", "%d.%m.%Y", ColumnUse::kIgnore),
                      column("d.weekday", ColumnUse::kCategory), label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{0, 1, 1}, Row{1, 0, 0}));
}

// A model that learned dates of CSV takes those of JSON, which are text there.
TEST_F(TableTimes, OtherFilesOfATrainedModelMayHaveThemAsText) {
  write("train/a.csv", "d,e,y\n1970-01-03,1970-01-05,0\n1970-01-02,1970-01-04,1\n");
  options_.files = {folder_ / "train"};
  options_.columns = {number("d"), number("e.day"), label("y")};
  const SampleSpec sample = classes(2, 2);
  const TrainedData trained{open(sample)->description(), SampleUse::kEvaluate};
  write("other/a.jsonl", "{\"d\":\"1970-01-11\",\"e\":\"1970-01-09\",\"y\":1}\n");
  options_.files = {folder_ / "other"};
  EXPECT_THAT(rows_of(TableDataset(options_, sample, 1, &trained)), ElementsAre(Row{10, 9, 1}));
}

TEST_F(TableTimes, ClassesAreCalledByTheirDates) {
  write("a.csv", "a,y\n1,2024-01-01\n2,1970-01-01\n");
  options_.columns = {number("a"), label("y")};
  EXPECT_THAT(open(classes(1, kOpen))->target_names(), ElementsAre("1970-01-01", "2024-01-01"));
  write("a.csv", "a,y\n1,1970-01-01\n2,1970-01-02\n");  // which are 0 and 1
  const auto dataset = open(classes(1, kOpen));
  EXPECT_THAT(dataset->target_names(), ElementsAre("1970-01-01", "1970-01-02"));
  const TrainedData trained{dataset->description(), SampleUse::kEvaluate};
  write("a.csv", "a,y\n1,1970-01-02 00:00:00\n2,1970-01-03 00:00:00\n");
  EXPECT_THAT(
      message_of([&] { (void)rows_of(TableDataset(options_, classes(1, 2), 1, &trained)); }),
      HasSubstr("is '1970-01-03', which is none of the 2 classes of training"));
}

TEST_F(TableTimes, KeptColumnsHaveDates) {
  write("train/a.csv", "a,y\n1,0\n2,1\n");
  options_.files = {folder_ / "train"};
  options_.columns = {number("a"), label("y")};
  const TrainedData trained{open(classes(1, 2))->description(), SampleUse::kPredict};
  write("other/a.csv", "a,d,t\n1,2017-06-25,2020-03-13 00:00:00.5\n2,,\n");
  options_.files = {folder_ / "other"};
  const TableDataset other(options_, classes(1, 2), 1, &trained);
  const std::vector<std::string> names = {"d", "t", "d.year"};
  const auto kept = other.open_columns(names);
  EXPECT_EQ(kept->columns()[0].type, KeptType::kText);
  EXPECT_EQ(kept->columns()[2].type, KeptType::kInteger);
  const auto values = kept->values(at::arange(2));
  EXPECT_THAT(values[0].texts, ElementsAre("2017-06-25", ""));
  EXPECT_THAT(values[1].texts, ElementsAre("2020-03-13 00:00:00.5", ""));
  EXPECT_THAT(values[2].integers, ElementsAre(2017, 0));
}

TEST_F(TableTimes, RefusesFormatsOfWhatIsNoDate) {
  options_.columns = {written("d", "%d.%m."), label("y")};
  EXPECT_THAT(refusal(), HasSubstr("columns.d: format = '%d.%m.' has no year"));
  options_.columns[0] = written("d", "%Y", ColumnUse::kText);
  EXPECT_THAT(refusal(), HasSubstr("for dates and times, not for as = \"text\""));
  options_.columns[0] = written("d", "%Y");
  options_.columns[0].type = TextType::kText;
  EXPECT_THAT(refusal(), HasSubstr("format is for dates and times, not for type = \"text\""));
}

}  // namespace
}  // namespace troika
