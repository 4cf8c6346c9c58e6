// The mechanism of recipes alone, on a document that is none.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/config/reader.h>
#include <troika/config/writer.h>

#include "toy_document.h"

namespace troika::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Read {
  Drawing drawing;
  std::vector<std::string> warnings;
};

Read read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Read result;
  ReadReport report = read_document(drawing_schema(), &result.drawing, text, "toy.toml", overrides);
  check_values(drawing_schema(), &result.drawing, report.origins);
  result.warnings = std::move(report.warnings);
  return result;
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    (void)read(text, overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

const std::string kCircle = "[shape]\nkind = \"circle\"\nradius = 2\n";
const std::string kSquare = "[shape]\nkind = \"square\"\n";

TEST(Document, ReadsItsKindsAndTheirKeys) {
  const Drawing square = read("copies = 3\npen = \"hard\"\n" + kSquare + "side = 7\n").drawing;
  EXPECT_EQ(square.shape.name(), "square");
  EXPECT_EQ(square.shape.as<SquareOptions>().side, 7);
  EXPECT_EQ(square.paint, Chosen<PaintKind>::named("plain"));
  EXPECT_EQ(square.copies, 3);
  EXPECT_EQ(square.pen, "hard");
  const Drawing striped =
      read(kCircle + "[paint]\nwidths = [0, 0.75]\nkind = \"striped\"\ngloss = 2\n").drawing;
  EXPECT_THAT(striped.paint.as<StripedOptions>().widths, ElementsAre(0, 0.75));
  EXPECT_EQ(striped.gloss, 2);
}

const std::string kBorrowed =
    "[shape]\nkind = \"borrowed\"\noptions = { side = 7 }\nof = \"square\"\n";

// The keys of a table come from a component that a key beside it names, before it or after it.
TEST(Document, ReadsKeysOfAComponentThatAnotherKeyNames) {
  const auto side = [](const Read& read) {
    return read.drawing.shape.as<BorrowedOptions>().own.as<SquareOptions>().side;
  };
  EXPECT_EQ(side(read(kBorrowed)), 7);
  EXPECT_EQ(side(read("[shape]\nkind = \"borrowed\"\nof = \"square\"\n")), 4);
  EXPECT_EQ(side(read(kBorrowed, {"shape.options.side=9"})), 9);
  EXPECT_EQ(
      side(read("[shape]\nkind = \"borrowed\"\nof = \"square\"\n[shape.options]\nside = 3\n")), 3);
  Read whole = read(kBorrowed);
  const std::string text = write_document(drawing_schema(), &whole.drawing, {});
  EXPECT_THAT(text, HasSubstr("options = { side = 7 }"));
  EXPECT_EQ(read(text).drawing.shape, whole.drawing.shape);
}

TEST(Document, NamesThePlaceOfEachKeyOfSuchATable) {
  const std::string table = "[shape]\nkind = \"borrowed\"\nof = \"square\"\n[shape.options]\n";
  EXPECT_EQ(error_of(table + "\nside = 0\n"),
            "toy.toml:6: [shape] options.side: 0 is out of range: 1 to 100");
  EXPECT_EQ(error_of(table + "sied = 2\n"),
            "toy.toml:5: [shape] options: unknown key 'sied'; did you mean 'side'?");
  EXPECT_EQ(error_of(table + "side = \"two\"\n"),
            "toy.toml:5: [shape] options.side: expected integer, found string \"two\"");
  EXPECT_EQ(error_of(kBorrowed, {"shape.options.side=0"}),
            "--set shape.options.side=0: [shape] options.side: 0 is out of range: 1 to 100");
  EXPECT_EQ(error_of("[shape]\nkind = \"borrowed\"\nof = \"circle\"\n"),
            "toy.toml: [shape] options: missing required key 'radius'");
  EXPECT_EQ(error_of("[shape]\nkind = \"borrowed\"\nof = \"oval\"\n"),
            "toy.toml:3: [shape] no shape is called 'oval'");
  EXPECT_EQ(error_of("[shape]\nkind = \"borrowed\"\nof = \"square\"\noptions = 3\n"),
            "toy.toml:4: [shape] options: expected table, found integer 3");
}

// A kind may come after its keys, and may be changed by an override.
TEST(Document, ChoosesKindsBeforeItReadsTheirKeys) {
  EXPECT_EQ(read("[shape]\nside = 7\nkind = \"square\"\n").drawing.shape.as<SquareOptions>().side,
            7);
  const Drawing drawing = read(kSquare, {"shape.kind=circle", "shape.radius=3"}).drawing;
  EXPECT_EQ(drawing.shape.as<CircleOptions>().radius, 3);
}

const std::string kStriped = kSquare + "[paint]\nkind = \"striped\"\n";

// In the order of the text, which is no alphabet's.
TEST(Document, ReadsAndWritesNamedTables) {
  const Drawing drawing =
      read(kStriped +
           "[paint.stripes]\nz = { width = 3, dots = [1, 2] }\n\"a b\" = { width = 1 }\n")
          .drawing;
  const std::vector<Stripe> expected = {{"z", 3, {1, 2}}, {"a b", 1, {}}};
  EXPECT_EQ(drawing.paint.as<StripedOptions>().stripes, expected);
  const std::string text = write_document(drawing_schema(), &drawing, {});
  EXPECT_THAT(text, HasSubstr("stripes = { \"z\" = { width = 3, dots = [1, 2] }, "
                              "\"a b\" = { width = 1, dots = [] } }"));
  EXPECT_EQ(read(text).drawing, drawing);
  const Drawing none = read(kStriped).drawing;
  EXPECT_THAT(write_document(drawing_schema(), &none, {}), HasSubstr("stripes = {}"));
}

TEST(Document, OverridesKeysOfNamedTables) {
  const std::string text = kStriped + "[paint.stripes]\nz = { width = 3 }\n";
  const auto stripes = [](const Read& read) {
    return read.drawing.paint.as<StripedOptions>().stripes;
  };
  EXPECT_THAT(stripes(read(text, {"paint.stripes.z.dots=[4]", "paint.stripes.y.width=2"})),
              ElementsAre(Stripe{"z", 3, {4}}, Stripe{"y", 2, {}}));
  EXPECT_THAT(stripes(read(kStriped, {"paint.stripes={y={width=2}}"})),
              ElementsAre(Stripe{"y", 2, {}}));
}

TEST(Document, NamesWhatIsWrongInANamedTable) {
  EXPECT_EQ(error_of(kStriped + "stripes = [1]\n"),
            "toy.toml:5: [paint] stripes: expected table of tables, found a list of 1");
  EXPECT_EQ(error_of(kStriped + "stripes = { z = 1 }\n"),
            "toy.toml:5: [paint] stripes: expected table of tables, found integer 1 as 'z'");
  EXPECT_EQ(error_of(kStriped + "stripes = { z = { wdth = 1 } }\n"),
            "toy.toml:5: [paint] stripes.z: unknown key 'wdth'; did you mean 'width'?");
  EXPECT_EQ(error_of(kStriped + "stripes = { z = { dots = [1] } }\n"),
            "toy.toml:5: [paint] stripes.z: missing required key 'width'");
  EXPECT_EQ(error_of(kStriped + "stripes = { z = { width = 200 } }\n"),
            "toy.toml:5: [paint] stripes.z.width: 200 is out of range: 1 to 100");
}

TEST(Document, ReadsAndWritesConditions) {
  const std::string lines =
      "where = [[\"height\", \">\", 0.5], [\"side\", \"in\", [\"left\", 2, true]]]\n";
  const Drawing drawing = read(kStriped + lines).drawing;
  const std::vector<Condition> expected = {
      {"height", ">", {0.5}, false},
      {"side", "in", {std::string("left"), std::int64_t{2}, true}, true}};
  EXPECT_EQ(drawing.paint.as<StripedOptions>().where, expected);
  EXPECT_THAT(write_document(drawing_schema(), &drawing, {}), HasSubstr(lines));
  for (const std::string wrong :
       {"[[\"height\", 1]]", "[[1, \">\", 1]]", "[[\"height\", \">\", [[1]]]]"}) {
    EXPECT_THAT(error_of(kStriped + "where = " + wrong + "\n"),
                HasSubstr("expected list of [NAME, RELATION, VALUE], found a list of"));
  }
}

TEST(Document, DerivesWhatWasNotWritten) {
  EXPECT_EQ(read(kCircle).drawing.shape.as<CircleOptions>().segments, 20);
  EXPECT_EQ(read(kCircle + "segments = 5\n").drawing.shape.as<CircleOptions>().segments, 5);
}

TEST(Document, NamesTheNearestOfWhatIsUnknown) {
  EXPECT_EQ(error_of(kSquare + "sid = 7\n"),
            "toy.toml:3: [shape] unknown key 'sid'; did you mean 'side'?");
  EXPECT_EQ(error_of(kSquare + "[pain]\n"),
            "toy.toml:3: unknown section [pain]; did you mean [paint]?");
  EXPECT_EQ(error_of("[shape]\nkind = \"squar\"\n"),
            "toy.toml:2: [shape] kind: 'squar' is not one of circle, square, borrowed; did you "
            "mean 'square'?");
  EXPECT_EQ(error_of("pen = \"herd\"\n" + kSquare),
            "toy.toml:1: pen: 'herd' is not one of soft, hard; did you mean 'hard'?");
  // Green is a colour, but not of this key.
  EXPECT_EQ(error_of(kSquare + "[paint]\ncolour = \"green\"\n"),
            "toy.toml:4: [paint] colour: 'green' is not one of red, blue");
  EXPECT_EQ(error_of(kSquare, {"paint.gloos=1"}),
            "--set paint.gloos=1: unknown key 'paint.gloos'; did you mean 'paint.gloss'?");
}

TEST(Document, RefusesOrLeavesUnusedTheKeysOfOtherKinds) {
  EXPECT_EQ(error_of(kSquare + "radius = 2\n"),
            "toy.toml:3: [shape] 'radius' is a key of kind = \"circle\", not of kind = \"square\"");
  EXPECT_THAT(read(kSquare + "[paint]\nwidths = [0.5, 0.5]\n").warnings,
              ElementsAre("toy.toml:4: [paint] widths is not used by kind = \"plain\""));
  EXPECT_THAT(read(kSquare + "[paint]\nwidths = [0.25, 0.5]\n").warnings, IsEmpty());
  // What is left unused has to have its type all the same.
  EXPECT_EQ(error_of(kSquare + "[paint]\nwidths = 3\n"),
            "toy.toml:4: [paint] widths: expected list of two numbers, found integer 3");
}

TEST(Document, AsksForWhatIsRequired) {
  EXPECT_EQ(error_of(""), "toy.toml: [shape] missing required key 'kind'");
  EXPECT_EQ(error_of("[shape]\nkind = \"circle\"\n"),
            "toy.toml: [shape] missing required key 'radius'");
}

TEST(Document, ChecksRangesThenWhatAComponentChecks) {
  EXPECT_EQ(error_of(kSquare + "side = 101\n"),
            "toy.toml:3: [shape] side: 101 is out of range: 1 to 100");
  EXPECT_EQ(error_of("[shape]\nkind = \"circle\"\nradius = 0\n"),
            "toy.toml:3: [shape] radius: 0.0 is out of range: more than 0");
  EXPECT_EQ(error_of(kCircle + "segments = 2\n"),
            "toy.toml:4: [shape] a circle has at least 3 segments");
  EXPECT_EQ(error_of(kCircle, {"shape.radius=0.1"}),
            "toy.toml: [shape] a circle has at least 3 segments");
}

TEST(Document, IsWrittenAndReadBack) {
  Drawing drawing;
  drawing.title = "a \"b\"\n";
  drawing.gloss = 0.1;
  drawing.shape.as<CircleOptions>() = {.radius = 1.0 / 3, .segments = 77};
  drawing.paint = Chosen<PaintKind>::named("striped");
  drawing.paint.as<StripedOptions>().colours = {"red", ""};
  const std::string text = write_document(drawing_schema(), &drawing, {{"by", "a test"}});
  EXPECT_THAT(text, HasSubstr("\n[provenance]\n\"by\" = \"a test\"\n"));
  EXPECT_THAT(text,
              HasSubstr("\n[paint]\nkind = \"striped\"\ngloss = 0.1\nwidths = [0.25, 0.5]\n"));
  Drawing back;
  (void)read_document(drawing_schema(), &back, text, "toy.toml");
  EXPECT_EQ(back, drawing);
}

TEST(Document, IsWrittenWithComments) {
  const Drawing drawing;
  const std::string text = write_commented(drawing_schema(), &drawing);
  EXPECT_THAT(
      text,
      HasSubstr(
          "\nkind = \"circle\"                   # circle | square | borrowed; which shape\n"));
  EXPECT_THAT(text, HasSubstr("# default: 10 radius; lines that it is drawn with\n"));
  EXPECT_THAT(text, HasSubstr("# kind = \"square\" takes these keys instead: side\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "# kind = \"striped\" takes these keys instead: widths, colours, stripes, where\n"));
  EXPECT_EQ(read(text).drawing, drawing);
}

TEST(Document, HasTablesOfEveryKind) {
  const std::string text = reference_tables(drawing_schema());
  EXPECT_THAT(text, HasSubstr("\n## Before the first section\n"));
  EXPECT_THAT(text, HasSubstr("\n## `[shape]` with `kind = \"circle\"`\n"));
  EXPECT_THAT(text, HasSubstr("| `radius` | number | *required* | more than 0 | from the middle"));
  EXPECT_THAT(text, HasSubstr("| `segments` | integer | `10 radius` | 1 to 1000000000 | lines"));
  EXPECT_THAT(text, HasSubstr("| `colour` | string | `\"red\"` | `red`, `blue` | everywhere |\n"));
  EXPECT_THAT(text,
              HasSubstr("| `widths` | list of two numbers | `[0.25, 0.5]` | each [0, 1) | of"));
}

TEST(Options, AreValues) {
  Options one(CircleOptions{.radius = 2});
  const Options other = one;
  EXPECT_EQ(one, other);
  one.as<CircleOptions>().radius = 3;
  EXPECT_FALSE(one == other);
  EXPECT_EQ(other.as<CircleOptions>().radius, 2);
  EXPECT_FALSE(other == Options(SquareOptions()));
  EXPECT_FALSE(other.holds<SquareOptions>());
  EXPECT_THROW((void)other.as<SquareOptions>(), InternalError);
  EXPECT_THROW((void)Chosen<ShapeKind>::named("triangle"), InternalError);
}

}  // namespace
}  // namespace troika::testing
