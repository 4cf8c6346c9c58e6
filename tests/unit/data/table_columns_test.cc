// Columns that are left out, that are not there, and whose numbers a double cannot hold.
#include <troika/data/sources/table/table.h>
#include <unit/data/table_support.h>

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Table, ShowsLongIdsAsTheFileHasThem) {
  write("a.csv", "id,y\n12345678901234567890,0\n98765432109876543211,1\n");
  options_.columns = {column("id", ColumnUse::kCategory), label("y")};
  std::string hint;
  try {
    (void)open(classes(2, 2));
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("row 0: the column 'id' is 12345678901234567890, beyond"));
    hint = error.hint();
  }
  EXPECT_THAT(hint, HasSubstr("type = \"text\""));
  options_.columns[0].type = TextType::kText;
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{0, 1, 1}, Row{1, 0, 0}));
  options_.columns = {number("y"), label("id")};
  EXPECT_THAT(error(classes(1, kOpen)), HasSubstr("'id' is 12345678901234567890, beyond 2^53"));
}

// A column with fractions has no digits beyond those of a double.
TEST_F(Table, ShowsLongIdsOfJsonAsTheFileHasThem) {
  const std::string ids = "{\"id\": 12345678901234567890, \"y\": 0}\n{\"id\": 7, \"y\": 1}\n";
  write("a.jsonl", ids);
  options_.columns = {column("id", ColumnUse::kCategory), label("y")};
  try {
    (void)open(classes(2, 2));
    ADD_FAILURE() << "an id that a double does not hold";
  } catch (const DataError& caught) {
    EXPECT_THAT(caught.what(), HasSubstr("row 0: the column 'id' is 12345678901234567890, beyond"));
    EXPECT_EQ(caught.hint(), "write the column as text, which keeps each digit");
  }
  write("a.jsonl", ids + "{\"id\": 0.5, \"y\": 1}\n");
  EXPECT_THAT(error(classes(2, 2)),
              HasSubstr("row 0: the column 'id' is about 12345678901234567168.0"));
}

// The rows before an id are of other sizes once it is text.
TEST_F(Table, ShowsALongIdFarBehind) {
  std::string text = "id,y\n";
  for (int i = 0; i < 70'000; ++i) text += "7,0\n";
  write("a.csv", text + "12345678901234567890,1\n");
  options_.columns = {column("id", ColumnUse::kCategory), label("y")};
  EXPECT_THAT(error(classes(2, 2)), HasSubstr("'id' is 12345678901234567890, beyond 2^53"));
}

TEST_F(Table, LeavesColumnsOut) {
  write("a.csv", "id,a,tmp_1,b,tmp_2,y\n7,1,0,2,0,0\n8,3,0,4,0,1\n");
  options_.columns = {number("*"), column("id", ColumnUse::kIgnore),
                      column("tmp_*", ColumnUse::kIgnore), column("none*", ColumnUse::kIgnore),
                      label("y")};
  EXPECT_THAT(rows_of(*open(classes(2, 2))), ElementsAre(Row{1, 2, 0}, Row{3, 4, 1}));
  EXPECT_THAT(open(classes(2, 2))->contents(), ElementsAre("features [2]: a, b", "targets []: y"));
  options_.columns[1].name = "idd";
  EXPECT_THAT(error(classes(2, 2)), HasSubstr("there is no column 'idd'"));
  options_.columns = {column("*", ColumnUse::kIgnore), label("y")};
  EXPECT_THAT(message_of<UsageError>([&] {
                table_kind().check_model(Options(options_), classes(2, 2), "mlp", Origins());
              }),
              HasSubstr("no column goes into 'features'"));
}

TEST_F(Table, ARowThatIsNullHasNoValues) {
  write("a.jsonl",
        "null\n{\"a\":1,\"b\":[null,\"null\\\"\"],\"y\":0}\n null\n{\"a\":null,\"y\":1}null\n");
  options_.columns = {number("a"), label("y")};
  options_.columns[0].missing = Missing::kZero;
  options_.columns[1].missing = Missing::kIgnore;
  EXPECT_THAT(rows_of(*open(classes(1, 2))),
              ElementsAre(Row{0, -100}, Row{0, -100}, Row{0, -100}, Row{0, 1}, Row{1, 0}));
}

TEST_F(Table, NamesATableWithoutColumns) {
  options_.columns = {number("a"), label("y")};
  for (const char* const rows : {"{}\n{}\n", "null\n", "{}\nnull\n"}) {
    write("a.jsonl", rows);
    EXPECT_THAT(error(classes(1, 2)), HasSubstr("a.jsonl")) << rows;
  }
  for (const char* const rows : {"[]\n", "5\n", "\"a\"\n", "[{\"a\":1}]\n"}) {
    write("a.jsonl", rows);
    EXPECT_THAT(error(classes(1, 2)), HasSubstr("a.jsonl")) << rows;
  }
  write("a.jsonl", "{}\n");
  EXPECT_THAT(error(classes(1, 2)), AllOf(HasSubstr("a.jsonl"), HasSubstr("has no columns")));
  write("b.jsonl", "{\"a\":1,\"y\":0}\n");
  EXPECT_THAT(error(classes(1, 2)), AllOf(HasSubstr("a.jsonl"), HasSubstr("has no columns")));
  write("c.jsonl", "{}\n");
  std::filesystem::remove(folder_ / "a.jsonl");
  EXPECT_THAT(error(classes(1, 2)), AllOf(HasSubstr("column 'a' is not in"), HasSubstr("c.jsonl")));
}

}  // namespace
}  // namespace troika
