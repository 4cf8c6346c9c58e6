// A network of your own as a kind of model that recipes name: an MLP-Mixer (Tolstikhin et al. 2021)
// for small images, with keys of its own. Build it, and train it by a recipe that names the
// library:
//
//   troika train mixer.toml --ranks 2 --set model.library=build/libown_model_plugin.so
#include <torch/torch.h>
#include <troika/model_plugin.h>

namespace {

constexpr std::int64_t kChannels = 3;

struct MixerOptions {
  std::int64_t image_size = 16;
  std::int64_t patch_size = 4;
  std::int64_t width = 32;
  std::int64_t blocks = 2;
  std::int64_t classes = 10;
  double dropout = 0;

  bool operator==(const MixerOptions&) const = default;

  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
};

// Two layers that mix the last dimension of their input.
torch::nn::Sequential mixing(std::int64_t size, std::int64_t hidden, double dropout) {
  return torch::nn::Sequential(torch::nn::Linear(size, hidden), torch::nn::GELU(),
                               torch::nn::Dropout(dropout), torch::nn::Linear(hidden, size));
}

// [n, channels, size, size] to [n, patches, width].
struct PatchesImpl : torch::nn::Module {
  explicit PatchesImpl(const MixerOptions& options)
      : cut(register_module(
            "cut",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(kChannels, options.width, options.patch_size)
                                  .stride(options.patch_size)))) {}
  torch::Tensor forward(const torch::Tensor& images) {
    return cut(images).flatten(2).transpose(1, 2);
  }
  torch::nn::Conv2d cut;
};
TORCH_MODULE(Patches);

// Mixes the patches of each channel, then the channels of each patch.
struct MixerBlockImpl : torch::nn::Module {
  explicit MixerBlockImpl(const MixerOptions& options)
      : first(register_module("first", torch::nn::LayerNorm(norm(options)))),
        second(register_module("second", torch::nn::LayerNorm(norm(options)))),
        patches(register_module("patches",
                                mixing(options.patches(), options.width / 2, options.dropout))),
        channels(register_module("channels",
                                 mixing(options.width, 2 * options.width, options.dropout))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor mixed = x + patches->forward(first(x).transpose(1, 2)).transpose(1, 2);
    return mixed + channels->forward(second(mixed));
  }
  static torch::nn::LayerNormOptions norm(const MixerOptions& options) {
    return torch::nn::LayerNormOptions({options.width});
  }
  torch::nn::LayerNorm first, second;
  torch::nn::Sequential patches, channels;
};
TORCH_MODULE(MixerBlock);

// Reads every patch, where the paper averages them: the random classes depend on places.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const MixerOptions& options)
      : classify(register_module(
            "classify", torch::nn::Linear(options.patches() * options.width, options.classes))) {}
  torch::Tensor forward(const torch::Tensor& x) { return classify(x.flatten(1)); }
  torch::nn::Linear classify;
};
TORCH_MODULE(Head);

std::vector<troika::Key> mixer_keys() {
  using O = MixerOptions;
  using K = troika::KeysOf<O>;
  return {
      K::integer<&O::image_size>("image_size", {4, 1024}, "height and width of an image"),
      K::integer<&O::patch_size>("patch_size", {1, 256}, "height and width of a patch"),
      K::integer<&O::width>("width", {2, 8192}, "numbers of a patch"),
      K::integer<&O::blocks>("blocks", {1, 256}, "mixer blocks"),
      K::integer<&O::classes>("classes", {2, 100'000}, "of images"),
      K::number<&O::dropout>("dropout", troika::ranges::kBelowOne, "inside a block"),
  };
}

class Mixer final : public troika::ModelPlugin<MixerOptions> {
 public:
  Mixer() : ModelPlugin("mixer", mixer_keys()) {}

  void validate(const MixerOptions& options) const override {
    if (options.image_size % options.patch_size == 0) return;
    throw troika::UsageError("an image of " + std::to_string(options.image_size) +
                                 " pixels has no whole number of patches of " +
                                 std::to_string(options.patch_size),
                             "patch_size divides image_size");
  }

  [[nodiscard]] troika::SampleSpec sample(const MixerOptions& options) const override {
    return {.tensors = {
                {.name = "images", .shape = {kChannels, options.image_size, options.image_size}},
                {.name = "targets",
                 .dtype = at::kLong,
                 .shape = {},
                 .range = options.classes,
                 .role = troika::TensorRole::kTarget}}};
  }

  // A pipeline is cut between any two of them, and ZeRO 3 gathers them one by one.
  [[nodiscard]] std::vector<troika::NamedUnit> units(const MixerOptions& o) const override {
    std::vector<troika::NamedUnit> row = {
        troika::unit("patches", [o] { return Patches(o); }, {o.patches(), o.width})};
    for (std::int64_t i = 0; i < o.blocks; ++i) {
      row.push_back(troika::unit("block" + std::to_string(i), [o] { return MixerBlock(o); },
                                 {o.patches(), o.width}));
    }
    row.push_back(troika::unit("head", [o] { return Head(o); }, {o.classes}));
    return row;
  }
};

}  // namespace

TROIKA_MODEL_PLUGIN(Mixer)
