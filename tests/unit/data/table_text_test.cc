// Text columns of tables: bytes, hashed words, and ids of a tokenizer.
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/table/table_description.h>
#include <troika/data/tokenizer.h>
#include <unit/data/table_support.h>

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr std::int64_t kLength = 5;

class TextColumn : public Table {
 protected:
  void SetUp() override {
    Table::SetUp();
    ColumnOptions text = column("text", ColumnUse::kText);
    text.into = "ids";
    options_.columns = {text, label("y")};
  }

  static SampleSpec sample(std::int64_t ids = 256, bool with_mask = true) {
    SampleSpec spec{{{"ids", at::kLong, {kLength}, ids, "classes"},
                     {"targets", at::kLong, {}, 2, "classes", TensorRole::kTarget}}};
    if (with_mask) spec.tensors.push_back({"ids.mask", at::kFloat, {kLength}});
    return spec;
  }

  // A tensor of all rows, in the order of the table.
  std::vector<Row> tensor(std::string_view name, const SampleSpec& sample) {
    const std::string description = open(sample)->description();
    const TrainedData trained{description, SampleUse::kPredict};
    const TableDataset dataset(options_, sample, 1, &trained);
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < dataset.samples(Split::kTrain); ++i) {
      const std::vector<SampleRef> place = {dataset.at(Split::kTrain, i)};
      const Microbatch batch = dataset.microbatch(Split::kTrain, place, 1);
      const at::Tensor row = batch.tensors.at(name).flatten().to(at::kDouble);
      rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
    }
    return rows;
  }

  std::string refusal() {
    return message_of<UsageError>([&] {
      table_kind().check(Options(options_), Origins());
      table_kind().check_model(Options(options_), sample(), "torchscript", Origins());
    });
  }
};

TEST_F(TextColumn, CutsBytesAndFillsThemUp) {
  write("a.csv", "text,y\nabcdefg,0\nhi,1\n,0\n");
  options_.columns[0].missing = Missing::kZero;
  EXPECT_THAT(tensor("ids", sample()), ElementsAre(Row{'a', 'b', 'c', 'd', 'e'},
                                                   Row{'h', 'i', 0, 0, 0}, Row{0, 0, 0, 0, 0}));
  EXPECT_THAT(tensor("ids.mask", sample()),
              ElementsAre(Row{1, 1, 1, 1, 1}, Row{1, 1, 0, 0, 0}, Row{0, 0, 0, 0, 0}));
  EXPECT_THAT(tensor("ids", sample(256, false))[1], ElementsAre('h', 'i', 0, 0, 0));
  options_.columns[0].missing = Missing::kError;
  EXPECT_THAT(error(sample()), HasSubstr("row 2: the column 'text' has no value"));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_EQ(open(sample())->samples(Split::kTrain), 2);
}

TEST_F(TextColumn, PutsTextsSideBySide) {
  write("a.csv", "text,more,y\nab,xyz,0\n12,34,1\n");
  options_.columns[0].length = 3;
  options_.columns.insert(options_.columns.begin() + 1, options_.columns[0]);
  options_.columns[1].name = "more";
  options_.columns[1].length = 2;
  EXPECT_THAT(tensor("ids", sample())[0], ElementsAre('a', 'b', 0, 'x', 'y'));
  EXPECT_THAT(tensor("ids.mask", sample())[0], ElementsAre(1, 1, 0, 1, 1));
  options_.columns[1].length = 3;
  EXPECT_THAT(error(sample()), HasSubstr("give 6 numbers a sample, and the model takes 5"));
}

TEST_F(TextColumn, HashesWords) {
  write("a.csv", "text,y\n  red  green red,0\nblue,1\n");
  options_.columns[0].encode = Encode::kHash;
  options_.columns[0].size = 50;
  const std::vector<Row> ids = tensor("ids", sample(50));
  EXPECT_EQ(ids[0][0], ids[0][2]);
  EXPECT_NE(ids[0][0], ids[0][1]);
  EXPECT_EQ(ids[0][3], 0);
  EXPECT_THAT(std::vector(ids[0].begin(), ids[0].begin() + 3), Each(AllOf(Ge(1), Lt(50))));
  EXPECT_THAT(tensor("ids.mask", sample(50))[1], ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(error(sample(49)), HasSubstr("token ids up to 49, and 'ids' takes 0 to 48"));
}

TEST_F(TextColumn, TakesTheIdsOfSentencePiece) {
  int left = 60;
  const auto line = [&]() -> std::optional<std::string> {
    return left-- > 0 ? std::optional("three horses abreast") : std::nullopt;
  };
  const std::string model = train_sentencepiece(line, 290);
  write_file(folder_ / "models/tokenizer.model", model);
  options_.columns[0].tokenizer = folder_ / "models/tokenizer.model";
  options_.files = {folder_ / "*.csv"};
  write("a.csv", "text,y\nthree horses abreast three horses abreast,0\nhorses,1\n");
  const auto tokenizer = load_sentencepiece(model, "a test");
  const std::vector<std::int32_t> ids = tokenizer->encode("horses");
  const Row row = tensor("ids", sample(tokenizer->vocab_size()))[1];
  EXPECT_EQ(Row(row.begin(), row.begin() + std::ssize(ids)), Row(ids.begin(), ids.end()));
  const auto dataset = open(sample(1000));
  EXPECT_EQ(dataset->files().back().path, (folder_ / "models/tokenizer.model").string());
  EXPECT_EQ(dataset->files().size(), 2U);
  const std::string description = dataset->description();
  EXPECT_EQ(read_description(description, sample(1000)).describe(), description);
  left = 60;
  write_file(folder_ / "models/tokenizer.model", train_sentencepiece(line, 280));
  EXPECT_THAT(message_of([&] { (void)read_description(description, sample(1000)); }),
              HasSubstr("of the column 'text' is not that of the training"));
}

TEST_F(TextColumn, RefusesWhatItCannotBe) {
  ColumnOptions& text = options_.columns[0];
  text.encode = Encode::kIndex;
  EXPECT_THAT(refusal(), HasSubstr("not for as = \"text\", which has encode = \"hash\" alone"));
  text.encode = Encode::kHash;
  text.size = 1;
  EXPECT_THAT(refusal(), HasSubstr("encode = \"hash\" needs a size"));
  text = column("text", ColumnUse::kText);
  text.into = "ids.mask";
  EXPECT_THAT(refusal(), HasSubstr("gives token ids, and 'ids.mask' takes numbers"));
  text = number("text");
  text.into = "ids";
  text.length = 4;
  EXPECT_THAT(refusal(), HasSubstr("length and tokenizer are for text, not for as = \"number\""));
}

}  // namespace
}  // namespace troika
