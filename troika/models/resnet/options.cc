#include <troika/models/resnet/options.h>
#include <troika/models/resnet/resnet.h>

#include <array>

namespace troika {

template <>
std::span<const std::string_view> names_of<ResnetBlock>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"basic", "bottleneck"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<ResnetStem>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"32x32", "224x224"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<BatchNormKind>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"batch", "sync_batch"});
  return kNames;
}

namespace {

// clang-format off
std::vector<Key> resnet_keys() {
  using O = ResnetOptions;
  using K = KeysOf<O>;
  constexpr IntegerRange kPixels{1, 10'000};
  return {
      K::integer<&O::classes>("classes", ranges::kSize, "classes to tell apart").derived_from("the classes of the data"),
      K::integers<&O::blocks>("blocks", kPixels, "blocks of each group; each group is twice as wide and half as large"),
      K::choice<&O::block>("block", "two 3x3 convolutions, or 1x1, 3x3 and 1x1 to four times the width"),
      K::integer<&O::width>("width", kPixels, "channels of the first group"),
      K::choice<&O::stem>("stem", "3x3 convolution; or 7x7 with stride 2 and a max-pool"),
      K::integer<&O::image_size>("image_size", kPixels, "height and width of an image").derived_from("that of the data's images, or as the stem is named"),
      K::integer<&O::channels>("channels", kPixels, "of an image").derived_from("those of the data's images, or 3"),
      K::choice<&O::norm>("norm", "statistics of a rank's microbatch, or of that of all data ranks"),
      K::number<&O::norm_eps>("norm_eps", ranges::kAboveZero, "added to the variance"),
      K::number<&O::norm_momentum>("norm_momentum", ranges::kBelowOne, "weight of a microbatch in the running statistics"),
      K::boolean<&O::channels_last>("channels_last", "memory order of activations; the numbers may differ in the last bits"),
  };
}
// clang-format on

class ResnetKind final : public Declared<ModelKind, ResnetOptions> {
 public:
  ResnetKind() : Declared("resnet", resnet_keys()) {}

  void derive(Options& options, const Origins& origins) const override {
    auto& model = options.as<ResnetOptions>();
    if (!origins.has("model.classes")) model.classes = 0;
    if (!origins.has("model.image_size")) model.image_size = 0;
    if (!origins.has("model.channels")) model.channels = 0;
  }

  [[nodiscard]] bool has_open_sizes(const Options& options, const Origins&) const override {
    const auto& model = options.as<ResnetOptions>();
    return model.classes == 0 || model.image_size == 0 || model.channels == 0;
  }

  void close_sizes(Options& options, const SampleSpec* sample,
                   const Origins& origins) const override {
    auto& model = options.as<ResnetOptions>();
    static const std::vector<std::int64_t> kNothing(3, 0);
    const std::vector<std::int64_t>& shape = sample != nullptr ? sample->input().shape : kNothing;
    if (model.classes == 0 && sample != nullptr) {
      const TensorSpec& target = sample->target();
      model.classes = isFloatingType(target.dtype) ? target.shape.front() : target.range;
    }
    if (model.classes == 0) {
      origins.fail({"model.classes"}, "missing required key 'classes'",
                   "only images and tables say it");
    }
    if (model.channels == 0) model.channels = shape[0] > 0 ? shape[0] : 3;
    if (model.image_size > 0) return;
    model.image_size = shape[1] > 0 ? shape[1] : model.stem == ResnetStem::k224 ? 224 : 32;
  }

  void check(const Options& options, const Origins& origins) const override {
    const auto& blocks = options.as<ResnetOptions>().blocks;
    if (!blocks.empty() && blocks.size() <= 8) return;
    origins.fail({"model.blocks"}, "blocks: expected 1 to 8 groups, found " +
                                       std::to_string(blocks.size()) +
                                       "; as in blocks = [2, 2, 2, 2]");
  }

  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind& loss) const override {
    const auto& model = options.as<ResnetOptions>();
    const std::int64_t size = model.image_size;
    ModelTraits traits;
    traits.outputs = model.classes;
    traits.outputs_key = "classes";
    traits.output_tensors = {{"outputs", at::kFloat, {model.classes}}};
    traits.sample.tensors = {{"images", at::kFloat, {model.channels, size, size}},
                             loss.targets(model.classes, "classes")};
    traits.sample.allow_weights();
    traits.units = std::ssize(resnet_unit_names(model));
    traits.units_are = "stem, blocks, head";
    traits.tensor_limit = "kind = \"resnet\" does not split its layers";
    traits.max_stages = traits.units;
    traits.stages_key = "blocks";
    const double pixels =
        static_cast<double>(size * size) / (model.stem == ResnetStem::k224 ? 16 : 1);
    traits.largest_product = 9 * pixels * static_cast<double>(model.width * model.width);
    traits.has_meta_kernels = false;
    return traits;
  }

  [[nodiscard]] std::string unit_name(const Options& options, std::int64_t unit) const override {
    return resnet_unit_names(options.as<ResnetOptions>())[static_cast<std::size_t>(unit)];
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions& loss, std::uint64_t,
                            const ModelLayout& layout) const override {
    return build_resnet(options.as<ResnetOptions>(), loss, layout);
  }
};

}  // namespace

const ModelKind& resnet_kind() {
  static const ResnetKind kKind;
  return kKind;
}

}  // namespace troika
