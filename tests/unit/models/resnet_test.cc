// A residual network is what its traits and its units' shapes say, and what torchvision's are: the
// same names, the same number of parameters and operations.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/resnet/options.h>
#include <troika/models/resnet/resnet.h>

#include <cmath>
#include <string>
#include <vector>

namespace troika {
namespace {

using ::testing::ElementsAre;

ResnetOptions small_resnet() {
  ResnetOptions options;
  options.classes = 5;
  options.blocks = {2, 1};
  options.width = 4;
  options.image_size = 9;
  return options;
}

std::vector<ParameterSpec> specs_of_units(const Model& model) {
  std::vector<ParameterSpec> specs;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (ParameterSpec& spec : model.units[unit]->specs()) {
      spec.unit = static_cast<int>(unit);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

Microbatch two_images(const ResnetOptions& options) {
  Microbatch batch;
  batch.tensors.set(
      "images", at::linspace(-1, 1, 2 * options.channels * options.image_size * options.image_size)
                    .reshape({2, options.channels, options.image_size, options.image_size}));
  batch.tensors.set("targets", at::tensor({0, 1}, at::kLong));
  batch.sample_ids = at::arange(2, at::kLong);
  batch.valid = 2;
  batch.step = 1;
  return batch;
}

// Passes two images through every unit; returns the loss.
double expect_shapes_as_said(const ResnetOptions& options, Mode mode, at::ScalarType type) {
  Model model = build_resnet(options, {}, {.tensor = {}, .type = type});
  Arena arena(specs_of_units(model), {type, at::kFloat}, Group());
  for (const auto& unit : model.units) unit->bind(arena);
  arena.initialize(7);
  Saved saved;
  saved.microbatch = two_images(options);
  saved.mode = mode;
  Activation activation;
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    SCOPED_TRACE(resnet_unit_names(options)[i]);
    Unit& unit = *model.units[i];
    if (i > 0) {
      EXPECT_EQ(activation.tensor().sizes(),
                at::IntArrayRef(unit.inputs(saved.microbatch).at(0).shape));
    }
    std::unique_ptr<UnitState> state;
    activation = unit.forward(std::move(activation), saved, state);
    EXPECT_EQ(state != nullptr, mode == Mode::kTrain);
    if (i + 1 == model.units.size()) break;
    EXPECT_EQ(activation.tensor().sizes(),
              at::IntArrayRef(unit.outputs(saved.microbatch).at(0).shape));
    EXPECT_EQ(activation.tensor().scalar_type(), type);
  }
  EXPECT_TRUE(model.units.back()->outputs(saved.microbatch).empty());
  EXPECT_EQ(activation.loss.read_weight(), 2);
  return activation.loss.read_sum();
}

TEST(Resnet, TraitsDescribeImagesAndUnits) {
  ModelOptions model(resnet_kind(), small_resnet());
  model.as<ResnetOptions>().channels = 2;
  const ModelTraits traits = traits_of(model);
  EXPECT_FALSE(traits.sample.is_language());
  EXPECT_EQ(traits.sample.input().dtype, at::kFloat);
  EXPECT_THAT(traits.sample.input().shape, ElementsAre(2, 9, 9));
  EXPECT_EQ(traits.sample.target().dtype, at::kLong);
  EXPECT_TRUE(traits.sample.target().shape.empty());
  EXPECT_EQ(traits.sample.target().range, 5);
  EXPECT_EQ(traits.sample.targets_per_sample, 1);
  EXPECT_EQ(traits.max_tensor, 1);
  EXPECT_EQ(traits.units, 5);
  EXPECT_EQ(traits.max_stages, traits.units);
  std::vector<std::string> names;
  for (std::int64_t unit = 0; unit < traits.units; ++unit) {
    names.push_back(model.kind().unit_name(model.options(), unit));
  }
  EXPECT_THAT(names, ElementsAre("stem", "layer1.0", "layer1.1", "layer2.0", "head"));
  EXPECT_EQ(build_model(model, 1).units.size(), names.size());
}

TEST(Resnet, EveryUnitGivesTheShapeThatItSays) {
  const double plain = expect_shapes_as_said(small_resnet(), Mode::kTrain, at::kFloat);
  ResnetOptions options = small_resnet();
  options.channels_last = false;
  EXPECT_NEAR(expect_shapes_as_said(options, Mode::kTrain, at::kFloat), plain, 1e-4);
  EXPECT_NEAR(expect_shapes_as_said(options, Mode::kTrain, at::kBFloat16), plain, 0.2);
  expect_shapes_as_said(options, Mode::kEvaluate, at::kFloat);
  options.block = ResnetBlock::kBottleneck;
  options.stem = ResnetStem::k224;
  for (const std::int64_t size : {33, 40}) {
    options.image_size = size;
    expect_shapes_as_said(options, Mode::kTrain, at::kFloat);
  }
  options.blocks = {1, 1, 1, 1, 1};  // down to images of one pixel
  expect_shapes_as_said(options, Mode::kEvaluate, at::kFloat);
}

TEST(Resnet, NamesTensorsAsTorchvision) {
  ResnetOptions options = small_resnet();
  options.blocks = {1, 1};
  const Model model = build_resnet(options);
  std::vector<std::string> parameters, buffers;
  for (const ParameterSpec& spec : specs_of_units(model)) parameters.push_back(spec.name);
  EXPECT_THAT(parameters, ::testing::UnorderedElementsAre(
                              "conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight",
                              "layer1.0.bn1.weight", "layer1.0.bn1.bias", "layer1.0.conv2.weight",
                              "layer1.0.bn2.weight", "layer1.0.bn2.bias", "layer2.0.conv1.weight",
                              "layer2.0.bn1.weight", "layer2.0.bn1.bias", "layer2.0.conv2.weight",
                              "layer2.0.bn2.weight", "layer2.0.bn2.bias",
                              "layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight",
                              "layer2.0.downsample.1.bias", "fc.weight", "fc.bias"));
  model.units.front()->for_each_buffer(
      [&](const std::string& name, const at::Tensor&) { buffers.push_back(name); });
  EXPECT_THAT(buffers, ::testing::UnorderedElementsAre("bn1.running_mean", "bn1.running_var",
                                                       "bn1.num_batches_tracked"));
}

// A count stays an integer, so that files load where integers are expected.
TEST(Resnet, KeepsRunningStatisticsInTheMastersPrecision) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Model model = build_resnet(small_resnet(), {}, {.tensor = {}, .type = type});
    for (const auto& unit : model.units) {
      unit->for_each_buffer([&](const std::string& name, const at::Tensor& tensor) {
        const auto floating = type == at::kDouble ? at::kDouble : at::kFloat;
        EXPECT_EQ(tensor.scalar_type(),
                  name.ends_with("num_batches_tracked") ? at::kLong : floating)
            << name;
      });
    }
  }
}

// The published figures of torchvision's models: parameters, and 1e9 multiply-adds a forward pass.
TEST(Resnet, HasTheSizeOfPublishedModels) {
  struct Published {
    ResnetBlock block;
    std::vector<std::int64_t> blocks;
    std::int64_t parameters;
    double multiply_adds;
  };
  for (const Published& expected :
       {Published{ResnetBlock::kBasic, {2, 2, 2, 2}, 11'689'512, 1.814e9},
        Published{ResnetBlock::kBottleneck, {3, 4, 6, 3}, 25'557'032, 4.089e9}}) {
    ResnetOptions options;
    options.block = expected.block;
    options.blocks = expected.blocks;
    options.stem = ResnetStem::k224;
    options.image_size = 224;
    options.classes = 1000;
    const Model model = build_resnet(options);
    std::int64_t parameters = 0;
    for (const ParameterSpec& spec : specs_of_units(model)) parameters += spec.global_count();
    EXPECT_EQ(parameters, expected.parameters);
    EXPECT_NEAR(model.facts.flops_per_sample / 6, expected.multiply_adds, 1e6);
  }
}

TEST(Resnet, StartsAsHeAndOthersDo) {
  ResnetOptions options = small_resnet();
  options.width = 32;
  const Model model = build_resnet(options);
  for (const ParameterSpec& spec : specs_of_units(model)) {
    SCOPED_TRACE(spec.name);
    const at::Tensor values = initial_values(spec, 3);
    const bool is_norm = spec.shape.size() == 1 && !spec.name.starts_with("fc.");
    EXPECT_EQ(spec.decays, spec.shape.size() > 1);
    EXPECT_EQ(spec.keep_fp32, is_norm);
    if (is_norm) {
      EXPECT_TRUE(at::all(values == (spec.name.ends_with(".weight") ? 1 : 0)).item<bool>());
    } else if (spec.shape.size() == 4) {
      const auto fan_out = static_cast<double>(spec.shape[0] * spec.shape[2] * spec.shape[3]);
      const double deviation = std::sqrt(2 / fan_out), count = static_cast<double>(values.numel());
      EXPECT_NEAR(values.std().item<double>(), deviation, 4 * deviation / std::sqrt(2 * count));
      EXPECT_NEAR(values.mean().item<double>(), 0, 4 * deviation / std::sqrt(count));
    } else {  // the last layer: 64 features
      EXPECT_LE(values.abs().max().item<double>(), 1.0 / 8);
      EXPECT_GT(values.abs().max().item<double>(), 0.5 / 8);
    }
  }
}

TEST(Resnet, RefusesGroupsThatItCannotHave) {
  const auto message = [](std::vector<std::int64_t> blocks) -> std::string {
    ResnetOptions options;
    options.blocks = std::move(blocks);
    try {
      resnet_kind().check(Options(options), Origins("r.toml"));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}),
            "r.toml: [model] blocks: expected 1 to 8 groups, found 0; as in blocks = [2, 2, 2, 2]");
  EXPECT_THAT(message(std::vector<std::int64_t>(9, 1)), ::testing::HasSubstr("found 9"));
  EXPECT_EQ(message(std::vector<std::int64_t>(8, 1)), "");
}

TEST(Resnet, ImagesAreAsLargeAsTheStemIsNamed) {
  for (const auto& [stem, size] : {std::pair{ResnetStem::k32, 32}, {ResnetStem::k224, 224}}) {
    ResnetOptions chosen;
    chosen.stem = stem;
    Options options(chosen);
    Origins origins;
    origins.set("model.classes", "r.toml:2");
    const auto complete = [&] {
      resnet_kind().derive(options, origins);
      resnet_kind().close_sizes(options, nullptr, origins);
      return options.as<ResnetOptions>().image_size;
    };
    EXPECT_EQ(complete(), size);
    options.as<ResnetOptions>().image_size = 40;
    origins.set("model.image_size", "r.toml:3");
    EXPECT_EQ(complete(), 40);
  }
}

// What a recipe leaves out follows from the data, or from the stem.
TEST(ResnetSizes, FollowFromImages) {
  Options options(ResnetOptions{});
  resnet_kind().derive(options, Origins());
  EXPECT_TRUE(resnet_kind().has_open_sizes(options, Origins()));
  SampleSpec sample = resnet_kind().traits(options, LossKind::default_kind()).sample;
  EXPECT_THAT(sample.input().shape, ElementsAre(0, 0, 0));
  EXPECT_EQ(sample.target().range, 0);
  sample.tensors[0].shape = {1, 28, 28};
  sample.tensors[1].range = 7;
  resnet_kind().close_sizes(options, &sample, Origins());
  const auto& closed = options.as<ResnetOptions>();
  EXPECT_EQ(closed.channels, 1);
  EXPECT_EQ(closed.image_size, 28);
  EXPECT_EQ(closed.classes, 7);
  EXPECT_FALSE(resnet_kind().has_open_sizes(options, Origins()));
}

TEST(ResnetSizes, HaveDefaultsWhereDataSayNothing) {
  ResnetOptions large;
  large.stem = ResnetStem::k224;
  Options options(large);
  resnet_kind().derive(options, Origins());
  EXPECT_THROW(resnet_kind().close_sizes(options, nullptr, Origins()), UsageError);
  options.as<ResnetOptions>().classes = 3;
  resnet_kind().close_sizes(options, nullptr, Origins());
  EXPECT_EQ(options.as<ResnetOptions>().channels, 3);
  EXPECT_EQ(options.as<ResnetOptions>().image_size, 224);
}

}  // namespace
}  // namespace troika
