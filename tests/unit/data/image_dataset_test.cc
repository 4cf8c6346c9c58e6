// kind = "images": classes, sides, order, and what becomes of images that are damaged.
#include <support/test_images.h>
#include <troika/base/plugin_folder.h>
#include <troika/data/arrow/plugin.h>
#include <troika/data/sources/images/image_dataset.h>
#include <troika/data/sources/images/images.h>
#include <unit/data/support.h>

#include <filesystem>
#include <map>
#include <set>

namespace troika {
namespace {

using test::jpeg_of;
using test::plain_image;
using test::png_of;
using test::smooth_image;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

SampleSpec images_of(std::int64_t size, std::int64_t classes, std::int64_t channels = 3) {
  return {{{"images", at::kFloat, {channels, size, size}},
           {"targets", at::kLong, {}, classes, "classes", TensorRole::kTarget}}};
}

class Images : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.path = folder_ / "photos";
    options_.held_out_fraction = 0;
    options_.mean = {0, 0, 0};
    options_.std = {1, 1, 1};
    options_.workers = 2;
  }

  void write(const std::string& name, const std::string& content) {
    write_file(folder_ / "photos" / name, content);
  }
  // Images of one colour: the first channel numbers them.
  void write_numbered(const std::string& name, int number) {
    write(name, png_of(plain_image(6, 5, {static_cast<std::uint8_t>(number), 0, 0})));
  }
  void write_classes(int images = 20) {
    for (int i = 0; i < images; ++i) {
      const std::string name = std::string(i % 2 == 0 ? "cat" : "dog") + "/" + std::to_string(i);
      write_numbered(name + ".png", i);
    }
  }

  std::unique_ptr<ImageDataset> open(const SampleSpec& sample = images_of(4, 2),
                                     std::uint64_t seed = 1) {
    return std::make_unique<ImageDataset>(options_, sample, seed);
  }
  std::string error(const SampleSpec& sample = images_of(4, 2)) {
    return message_of([&] { (void)numbers_of(*open(sample)); });
  }

  // {number: class} of a side, which has each image once.
  static std::map<int, std::int64_t> numbers_of(const Dataset& dataset,
                                                Split split = Split::kTrain) {
    std::map<int, std::int64_t> found;
    const auto batches = build_microbatches(dataset, split, {0, dataset.samples(split)}, 7, 1);
    for (const Microbatch& batch : batches) {
      for (std::int64_t i = 0; i < batch.samples(); ++i) {
        const auto number =
            static_cast<int>(std::lround(batch.tensors[0][i][0][1][1].item<float>() * 255));
        EXPECT_TRUE(found.emplace(number, batch.tensors[1][i].item<std::int64_t>()).second);
      }
    }
    return found;
  }

  TemporaryFolder folder_;
  FolderOptions options_;
};

// What an object store has listed is what hosts compare.
TEST_F(Images, OfAnObjectStoreHaveTheSizesThatItLists) {
  if (!detail::find_plugin(arrow_plugin::kFile)) GTEST_SKIP() << "built with TROIKA_ARROW=0";
  write_classes(4);
  const auto here = open()->files();
  options_.path = "file://" + (folder_ / "photos").string();
  const auto stored = open()->files();
  ASSERT_EQ(stored.size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_GT(here[i].size, 0);
    EXPECT_EQ(stored[i].size, here[i].size);
    EXPECT_EQ(stored[i].path, "file://" + here[i].path);
  }
}

TEST_F(Images, NumbersClassesInTheOrderOfTheirNames) {
  write_numbered("zebra/a.png", 1);
  write_numbered("Ant/deep/er/b.PNG", 2);
  write_numbered("bee/c.jpeg", 3);  // the content says what it is
  write_numbered("bee/.hidden.png", 4);
  write_numbered(".git/d.png", 5);
  write("bee/notes.txt", "no image");
  const auto dataset = open(images_of(4, 3));
  EXPECT_THAT(numbers_of(*dataset), ElementsAre(std::pair(1, 2), std::pair(2, 0), std::pair(3, 1)));
  EXPECT_THAT(dataset->warnings(), ElementsAre(HasSubstr("1 file in")));
  EXPECT_THAT(dataset->description(), HasSubstr("\"Ant\",\n  \"bee\",\n  \"zebra\""));
  EXPECT_EQ(dataset->facts().rows_are, "images");
}

TEST_F(Images, DescribesThemselvesToTheModel) {
  write("a/1.png", png_of(smooth_image(12, 9, 1)));
  write("b/1.png", png_of(smooth_image(30, 30, 1)));
  const auto described = [&] {
    return *images_kind().describe(Options(options_), images_of(0, 0, 0), Origins());
  };
  EXPECT_THAT(described().input().shape, ElementsAre(3, 9, 9));
  EXPECT_EQ(described().target().range, 2);
  options_.mean = options_.std = {};
  options_.color = ImageColor::kGray;
  options_.size = 7;
  EXPECT_THAT(described().input().shape, ElementsAre(1, 7, 7));
  options_.classes = {"a", "b", "c"};
  EXPECT_EQ(described().target().range, 3);
}

TEST_F(Images, RefusesModelsThatTakeOthers) {
  const auto refused = [&](const SampleSpec& sample) {
    return message_of<UsageError>(
        [&] { images_kind().check_model(Options(options_), sample, "resnet", Origins()); });
  };
  EXPECT_THAT(refused(token_samples(8)), HasSubstr("takes none"));
  EXPECT_THAT(refused(images_of(8, 2, 1)), HasSubstr("3 channels, and the model takes 1"));
  options_.size = 9;
  EXPECT_THAT(refused(images_of(8, 2)), HasSubstr("size = 9"));
  SampleSpec values = images_of(9, 2);
  values.tensors[1].dtype = at::kFloat;
  EXPECT_THAT(refused(values), HasSubstr("a class for each image"));
}

TEST_F(Images, HoldsTheSameImagesOutWithAnySeedAndBesideOthers) {
  write_classes(60);
  options_.held_out_fraction = 0.3;
  const auto first = open();
  const auto held_out = numbers_of(*first, Split::kHeldOut);
  EXPECT_THAT(held_out.size(), ::testing::AllOf(::testing::Gt(8U), ::testing::Lt(28U)));
  EXPECT_EQ(held_out.size() + numbers_of(*first).size(), 60U);
  EXPECT_EQ(numbers_of(*open(images_of(4, 2), 2), Split::kHeldOut), held_out);
  const std::string before = first->fingerprint();
  write_numbered("cat/more.png", 200);
  const auto second = open();
  for (const auto& [number, label] : numbers_of(*second, Split::kHeldOut)) {
    EXPECT_TRUE(number == 200 || held_out.contains(number)) << number;
  }
  EXPECT_NE(second->fingerprint(), before);
}

TEST_F(Images, TakesTheHeldOutSideFromAFolderOfItsOwn) {
  write_classes(6);
  options_.validation_path = folder_ / "validation";
  options_.held_out_fraction = 0.5;
  write_file(folder_ / "validation/dog/x.png", png_of(plain_image(6, 5, {77, 0, 0})));
  const auto dataset = open();
  EXPECT_THAT(numbers_of(*dataset), SizeIs(6));
  EXPECT_THAT(numbers_of(*dataset, Split::kHeldOut), ElementsAre(std::pair(77, 1)));
  write_file(folder_ / "validation/dgo/x.png", "");
  EXPECT_THAT(error(), HasSubstr("validation/dgo' is the folder of no class; did you mean 'dog'?"));
}

TEST_F(Images, SaysWhatTheFolderLacks) {
  EXPECT_THAT(error(), HasSubstr("cannot list the folder"));
  write("a.png", "");
  EXPECT_THAT(error(), HasSubstr("there is no folder in"));
  write("cat/notes.txt", "none");
  EXPECT_THAT(error(), HasSubstr("there is no image in"));
  write_numbered("cat/1.png", 1);
  options_.held_out_fraction = 0.999999;
  EXPECT_THAT(error(), HasSubstr("no image is left to train on"));
}

TEST_F(Images, TakesClassesAsTheRecipeNumbersThem) {
  write_classes(4);
  options_.classes = {"dog", "fox", "cat"};
  EXPECT_THAT(numbers_of(*open(images_of(4, 3))),
              ElementsAre(std::pair(0, 2), std::pair(1, 0), std::pair(2, 2), std::pair(3, 0)));
  options_.classes = {"dog"};
  EXPECT_THAT(error(), HasSubstr("photos/cat' is the folder of no class"));
}

TEST_F(Images, ComesOnceAnEpochInAnotherOrder) {
  write_classes(20);
  const auto dataset = open();
  std::vector<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> order;
    for (int i = 0; i < 20; ++i) order.push_back(dataset->at(Split::kTrain, 20 * epoch + i).index);
    EXPECT_THAT(std::set(order.begin(), order.end()), SizeIs(20));
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
}

// The stream is a function of seed and ordinal, however it is cut and however many threads decode.
TEST_F(Images, IsTheSameStreamOnEveryLayout) {
  for (int i = 0; i < 12; ++i) {
    write((i % 2 == 0 ? "cat/" : "dog/") + std::to_string(i) + ".jpg",
          jpeg_of(smooth_image(40 + i, 30, 3, i)));
  }
  options_.crop = ImageCrop::kRandomResized;
  options_.flip = true;
  const SampleSpec sample = images_of(16, 2);
  const auto reference = build_microbatches(*open(sample), Split::kTrain, {5, 24}, 24, 1).front();
  options_.workers = 5;
  const auto dataset = open(sample);
  std::vector<at::Tensor> parts;
  for (const IndexRange range : {IndexRange{5, 8}, {13, 16}}) {
    for (const Microbatch& batch : build_microbatches(*dataset, Split::kTrain, range, 3, 9)) {
      parts.push_back(batch.tensors[0]);
    }
  }
  EXPECT_TRUE(at::equal(at::cat(parts), reference.tensors[0]));
  const auto other = open(sample, 2);
  EXPECT_FALSE(
      at::equal(build_microbatches(*other, Split::kTrain, {5, 24}, 24, 1).front().tensors[0],
                reference.tensors[0]));
}

TEST_F(Images, DrawsAnewEachEpochAndNotForEvaluation) {
  write("cat/1.png", png_of(smooth_image(40, 30, 3)));
  write("dog/1.png", png_of(smooth_image(40, 30, 3)));
  options_.crop = ImageCrop::kRandomResized;
  options_.validation_path = options_.path;
  const auto dataset = open(images_of(16, 2));
  const auto image = [&](Split split, std::int64_t ordinal, std::int64_t step) {
    return dataset->microbatch(split, std::vector{SampleRef{0, 0, 0, ordinal}}, step).tensors[0];
  };
  EXPECT_FALSE(at::equal(image(Split::kTrain, 0, 1), image(Split::kTrain, 2, 1)));
  EXPECT_TRUE(at::equal(image(Split::kTrain, 2, 1), image(Split::kTrain, 2, 5)));
  EXPECT_TRUE(at::equal(image(Split::kHeldOut, 0, 1), image(Split::kHeldOut, 1, 1)));
  EXPECT_TRUE(at::equal(image(Split::kHeldOut, 0, 1), image(Split::kTrain, 1, 0)));
}

TEST_F(Images, LearnsItsNormalisationFromTheTrainingSideAlone) {
  write("cat/1.png", png_of(plain_image(8, 8, {0, 51, 255})));
  write("dog/1.png", png_of(plain_image(8, 8, {255, 51, 0})));
  write_file(folder_ / "validation/dog/1.png", png_of(plain_image(8, 8, {255, 255, 255})));
  options_.validation_path = folder_ / "validation";
  options_.mean = options_.std = {};
  const auto dataset = open();
  EXPECT_THAT(dataset->description(), HasSubstr("\"mean\": [\n  0.5,"));
  const at::Tensor held_out =
      build_microbatches(*dataset, Split::kHeldOut, {0, 1}, 1, 0).front().tensors[0];
  EXPECT_NEAR(held_out[0][0][0][0].item<float>(), 1, 1e-5);    // (1 - 0.5) / 0.5
  EXPECT_NEAR(held_out[0][1][0][0].item<float>(), 0.8, 1e-5);  // a constant channel keeps its width
  const FolderOptions other = as_described(FolderOptions(), dataset->description());
  EXPECT_THAT(other.classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(other.mean, SizeIs(3));
  EXPECT_EQ(other.std[0], 0.5);
  EXPECT_THAT(message_of([] { (void)as_described({}, "{\"mean\": 1}"); }), HasSubstr("'mean'"));
}

TEST_F(Images, ComesWithoutClassesInTheOrderOfNames) {
  write_numbered("b/2.png", 2);
  write_numbered("a.png", 0);
  write_numbered("b/1.png", 1);
  const ImageDataset dataset(options_, images_of(4, 3), 1, ImageUse::kPredict);
  EXPECT_EQ(dataset.samples(Split::kTrain), 3);
  const Microbatch batch = build_microbatches(dataset, Split::kTrain, {0, 3}, 3, 0).front();
  EXPECT_THAT(values(batch.sample_ids), ElementsAre(0, 1, 2));
  EXPECT_THAT(values(batch.tensors[1]), ElementsAre(0, 0, 0));
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::lround(batch.tensors[0][i][0][1][1].item<float>() * 255), i);
  }
}

TEST_F(Images, NamesABadImage) {
  write_classes(8);
  write("dog/bad.jpg", jpeg_of(smooth_image(30, 30, 3)).substr(0, 400));
  EXPECT_THAT(error(), HasSubstr("photos/dog/bad.jpg' is a damaged JPEG image: "));
  write("dog/bad.jpg", "");
  EXPECT_THAT(error(), HasSubstr("photos/dog/bad.jpg' is empty"));
}

TEST_F(Images, LeavesBadImagesOutAndCountsThem) {
  write_classes(8);
  write("cat/bad.jpg", jpeg_of(smooth_image(30, 30, 3)).substr(0, 400));
  options_.on_bad_image = OnBadImage::kSkip;
  EXPECT_THAT(open()->warnings(), ElementsAre(HasSubstr("1 bad image left out, the first is ")));
  write("dog/bad.png", "no image");
  std::filesystem::create_symlink("nowhere.png", folder_ / "photos/dog/dangling.png");
  const auto dataset = open();
  EXPECT_THAT(numbers_of(*dataset), SizeIs(8));
  EXPECT_THAT(dataset->warnings(),
              ElementsAre(::testing::AllOf(HasSubstr("3 bad images left out, the first is "),
                                           HasSubstr("cat/bad.jpg', which is a damaged JPEG"))));
}

TEST_F(Images, ComeEquallyOftenByClass) {
  for (int i = 0; i < 9; ++i) write_numbered("cat/" + std::to_string(i) + ".png", i);
  write_numbered("dog/9.png", 9);
  write_numbered("eel/10.png", 10);
  options_.balance_classes = true;
  const auto dataset = open(images_of(4, 3)), same = open(images_of(4, 3));
  const Microbatch batch = build_microbatches(*dataset, Split::kTrain, {0, 27}, 27, 1).front();
  const Microbatch second = build_microbatches(*same, Split::kTrain, {9, 9}, 9, 1).front();
  EXPECT_TRUE(at::equal(batch.tensors[0].narrow(0, 9, 9), second.tensors[0]));
  std::map<std::int64_t, std::map<long, int>> seen;
  for (std::int64_t i = 0; i < 27; ++i) {
    const long number = std::lround(batch.tensors[0][i][0][1][1].item<float>() * 255);
    ++seen[batch.tensors[1][i].item<std::int64_t>()][number];
  }
  EXPECT_THAT(seen[0], SizeIs(9));  // each cat once
  EXPECT_THAT(seen[1], ElementsAre(std::pair(9L, 9)));
  EXPECT_THAT(seen[2], ElementsAre(std::pair(10L, 9)));
}

TEST_F(Images, HaveTheSameSidesWithoutClasses) {
  write_classes(40);
  options_.held_out_fraction = 0.3;
  const auto dataset = open();
  const ImageDataset named(options_, images_of(4, 2), 1, ImageUse::kPredict);
  ASSERT_EQ(named.samples(Split::kHeldOut), dataset->samples(Split::kHeldOut));
  const std::vector<std::string> names = named.sample_names();
  std::set<std::string> held_out;
  for (std::int64_t i = 0; i < named.samples(Split::kHeldOut); ++i) {
    held_out.insert(names[static_cast<std::size_t>(named.at(Split::kHeldOut, i).ordinal)]);
  }
  for (const auto& [number, label] : numbers_of(*dataset, Split::kHeldOut)) {
    EXPECT_TRUE(
        held_out.contains((label == 0 ? "cat/" : "dog/") + std::to_string(number) + ".png"));
  }
}

TEST_F(Images, AreOneFileToPredict) {
  write_numbered("b/2.png", 2);
  options_.path = folder_ / "photos/b/2.png";
  const ImageDataset dataset(options_, images_of(4, 3), 1, ImageUse::kPredict);
  EXPECT_EQ(dataset.samples(Split::kTrain), 1);
  EXPECT_THAT(dataset.sample_names(), ElementsAre("2.png"));
}

}  // namespace
}  // namespace troika
