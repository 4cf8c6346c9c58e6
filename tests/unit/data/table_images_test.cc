// Columns with as = "image", here of paths: tests/command/images_test.py has bytes and structs.
#include <support/test_images.h>
#include <troika/base/plugin_folder.h>
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/table/table_dataset.h>
#include <unit/data/support.h>

#include <map>

namespace troika {
namespace {

using test::plain_image;
using test::png_of;
using test::smooth_image;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SampleSpec images(std::int64_t size, std::int64_t channels = 3) {
  return {{{"images", at::kFloat, {channels, size, size}},
           {"targets", at::kLong, {}, 4, "classes", TensorRole::kTarget}}};
}

class TableImages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::find_plugin(arrow_plugin::kFile)) GTEST_SKIP() << "built with TROIKA_ARROW=0";
    options_.files = {folder_ / "*.csv"};
    options_.held_out_fraction = 0;
    options_.columns.resize(2);
    photo().name = "photo";
    photo().as = ColumnUse::kImage;
    photo().mean = {0, 0, 0};
    photo().std = {1, 1, 1};
    options_.columns[1].name = "y";
    options_.columns[1].as = ColumnUse::kLabel;
    for (int i = 0; i < 4; ++i) {
      write_file(folder_ / "photos" / (std::to_string(i) + ".png"),
                 png_of(plain_image(8, 9, {static_cast<std::uint8_t>(10 * i), 0, 255})));
    }
    write_file(folder_ / "a.csv",
               "photo,y\nphotos/0.png,0\nphotos/1.png,1\nphotos/2.png,2\nphotos/3.png,3\n");
  }

  ColumnOptions& photo() { return options_.columns[0]; }
  std::unique_ptr<TableDataset> open(const SampleSpec& sample = images(6)) {
    return std::make_unique<TableDataset>(options_, sample, 1);
  }
  Microbatch whole(const Dataset& dataset, std::int64_t step = 1) {
    const std::int64_t count = dataset.samples(Split::kTrain);
    return build_microbatches(dataset, Split::kTrain, {0, count}, count, step).front();
  }
  std::string error(const SampleSpec& sample = images(6)) {
    return message_of([&] { (void)whole(*open(sample)); });
  }

  TemporaryFolder folder_;
  TableOptions options_;
};

// So that hosts can compare them: a name twice, an empty row, and a file that is not there.
TEST_F(TableImages, AreFilesThatTheTableNames) {
  write_file(folder_ / "a.csv",
             "photo,y\nphotos/2.png,0\nphotos/0.png,1\n,2\nphotos/2.png,2\nphotos/9.png,3\n");
  photo().missing = Missing::kSkipRow;
  options_.columns[0].normalise = Normalise::kNone;
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;
  const auto named = open()->named_files({});
  for (const DataFile& each : named) {
    names.push_back(std::filesystem::path(each.path).filename());
    sizes.push_back(each.size);
  }
  const auto size = [&](const char* name) {
    return static_cast<std::int64_t>(std::filesystem::file_size(folder_ / "photos" / name));
  };
  EXPECT_THAT(names, ElementsAre("2.png", "0.png", "9.png"));
  EXPECT_THAT(sizes, ElementsAre(size("2.png"), size("0.png"), -1));
}

TEST_F(TableImages, GoWithTheirLabels) {
  const auto dataset = open();
  const Microbatch batch = whole(*dataset);
  EXPECT_EQ(batch.tensors[0].sizes(), (std::vector<std::int64_t>{4, 3, 6, 6}));
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto label = static_cast<float>(batch.tensors[1][i].item<std::int64_t>());
    EXPECT_FLOAT_EQ(batch.tensors[0][i][0][3][3].item<float>(), 10 * label / 255);
    EXPECT_FLOAT_EQ(batch.tensors[0][i][2][3][3].item<float>(), 1);
  }
}

TEST_F(TableImages, OfAnotherTableAreReadForATrainedModel) {
  const TrainedData trained{open()->description(), SampleUse::kPredict};
  write_file(folder_ / "a.csv", "photo\nphotos/3.png\n");
  const TableDataset other(options_, images(6), 1, &trained);
  EXPECT_FLOAT_EQ(whole(other).tensors[0][0][0][3][3].item<float>(), 30.F / 255);
}

TEST_F(TableImages, SayHowLargeTheyAre) {
  const auto described = [&](const SampleSpec& sample) {
    return table_kind().describe(Options(options_), sample, Origins())->input().shape;
  };
  EXPECT_THAT(described(images(0, 0)), ElementsAre(3, 8, 8));
  photo().size = 5;
  EXPECT_THAT(described(images(0, 0)), ElementsAre(3, 5, 5));
}

TEST_F(TableImages, MeasureTheirNormalisation) {
  photo().mean = photo().std = {};
  const auto dataset = open();
  const Microbatch batch = whole(*dataset);
  EXPECT_NEAR(batch.tensors[0].select(1, 0).mean().item<float>(), 0, 1e-5);
  EXPECT_NEAR(batch.tensors[0].select(1, 0).std(false).item<float>(), 1, 1e-4);
  EXPECT_NEAR(batch.tensors[0].select(1, 2).abs().max().item<float>(), 0, 1e-5);
  EXPECT_THAT(dataset->description(), HasSubstr("\"resize\": \"shorter_side\""));
}

TEST_F(TableImages, AreDrawnByOrdinal) {
  for (int i = 0; i < 4; ++i) {
    write_file(folder_ / "photos" / (std::to_string(i) + ".png"), png_of(smooth_image(40, 30, 3)));
  }
  photo().crop = ImageCrop::kRandomResized;
  photo().flip = true;
  const auto dataset = open();
  const auto image = [&](std::int64_t ordinal, std::int64_t step) {
    return dataset->microbatch(Split::kTrain, std::vector{SampleRef{0, 0, 0, ordinal}}, step)
        .tensors[0];
  };
  EXPECT_TRUE(at::equal(image(3, 1), image(3, 2)));
  EXPECT_FALSE(at::equal(image(3, 1), image(4, 1)));
  EXPECT_TRUE(at::equal(image(3, 0), image(4, 0)));
}

TEST_F(TableImages, StartAtAFolderOfTheirOwn) {
  photo().root = folder_ / "photos";
  write_file(folder_ / "a.csv", "photo,y\n0.png,0\n3.png,3\n");
  EXPECT_EQ(whole(*open()).samples(), 2);
}

TEST_F(TableImages, NameTheRowOfABadOne) {
  write_file(folder_ / "photos/2.png", "none");
  EXPECT_THAT(error(), HasSubstr("row group 0, row 2: the column 'photo' is '"));
  EXPECT_THAT(error(), HasSubstr("2.png', which is no JPEG or PNG image"));
  options_.on_bad_row = OnBadRow::kSkip;
  write_file(folder_ / "a.csv", "photo,y\nphotos/0.png,0\nphotos/2.png,2\nphotos/none.png,2\n");
  const auto dataset = open();
  EXPECT_EQ(dataset->samples(Split::kTrain), 1);
  EXPECT_THAT(dataset->warnings(), ElementsAre(HasSubstr("2 bad rows left out")));
}

TEST_F(TableImages, AreAllOfATensorThatIsAnImage) {
  const auto refused = [&](const SampleSpec& sample) {
    return message_of<UsageError>([&] {
      table_kind().check(Options(options_), Origins());
      table_kind().check_model(Options(options_), sample, "resnet", Origins());
    });
  };
  SampleSpec flat = images(6);
  flat.tensors[0].shape = {108};
  EXPECT_THAT(refused(flat), HasSubstr("'images' of kind = \"resnet\" is no image"));
  EXPECT_THAT(refused(images(6, 1)), HasSubstr("gives 3 channels, and the model takes 1"));
  options_.columns[1].flip = true;
  EXPECT_THAT(refused(images(6)), HasSubstr("are for images, not for as = \"label\""));
}

TEST_F(TableImages, NamesAndSkipsAFileThatIsNotThere) {
  write_file(folder_ / "a.csv", "photo,y\nphotos/0.png,0\nphotos/none.png,1\nphotos/2.png,2\n");
  const std::string told = "a.csv', row group 0, row 1: the column 'photo' is a path: cannot read ";
  EXPECT_THAT(error(), HasSubstr(told));
  photo().mean.clear();
  photo().std.clear();
  EXPECT_THAT(error(), HasSubstr(told));
  options_.on_bad_row = OnBadRow::kSkip;
  EXPECT_EQ(open()->samples(Split::kTrain), 2);
}

}  // namespace
}  // namespace troika
