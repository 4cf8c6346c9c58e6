#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/images/image_reader.h>
#include <troika/data/sources/images/image_dataset.h>
#include <troika/data/sources/images/images.h>
#include <troika/data/sources/images/options.h>

#include <algorithm>

namespace troika {
namespace {

class ImagesKind final : public Declared<DataKind, FolderOptions> {
 public:
  ImagesKind() : Declared("images", folder_keys()) {}

  void check(const Options& options, const Origins& origins) const override {
    const std::string refusal =
        refusal_of(static_cast<const ImageOptions&>(options.as<FolderOptions>()));
    if (refusal.empty()) return;
    origins.fail({"data." + refusal.substr(0, refusal.find(':'))}, refusal);
  }

  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override {
    const auto& folder = options.as<FolderOptions>();
    const std::string kind = model.empty() ? "the model" : "kind = \"" + std::string(model) + "\"";
    const TensorSpec &input = sample.input(), &target = sample.target();
    if (!isFloatingType(input.dtype) || input.shape.size() != 3) {
      origins.fail({"data.kind", "model.kind"},
                   "kind = \"images\" gives images, and " + kind + " takes none",
                   "kind = \"resnet\" takes images, as do networks of your own");
    }
    if (isFloatingType(target.dtype) || !target.shape.empty()) {
      origins.fail({"model.loss", "data.kind"}, "kind = \"images\" gives a class for each image",
                   "loss = \"cross_entropy\" takes classes; other targets come from a table");
    }
    for (const TensorSpec& tensor : sample.tensors) {
      if (tensor.optional || tensor == input || tensor == target) continue;
      origins.fail(
          {"data.kind"},
          "kind = \"images\" gives no " + quote(tensor.name) + ", which " + kind + " takes",
          "a table can have an image and other columns");
    }
    const std::string refusal = refusal_of(folder, input.shape);
    if (!refusal.empty()) {
      origins.fail({"data.size", "data.color"}, refusal,
                   "say it once: leave the model's sizes out");
    }
    if (!folder.classes.empty() && target.range > 0 && std::ssize(folder.classes) > target.range) {
      origins.fail({"data.classes"}, "classes: " + std::to_string(folder.classes.size()) +
                                         " are more than the model's " +
                                         std::to_string(target.range));
    }
  }

  [[nodiscard]] std::int64_t max_held_out_samples(const Options& options) const override {
    const auto& folder = options.as<FolderOptions>();
    return folder.held_out_fraction == 0 && folder.validation_path == kNoFolder ? 0 : kUnlimited;
  }

  [[nodiscard]] std::optional<SampleSpec> describe(const Options& options, const SampleSpec& sample,
                                                   const Origins& origins) const override {
    check(options, origins);
    check_model(options, sample, "", origins);
    const auto& folder = options.as<FolderOptions>();
    SampleSpec described = sample;
    for (TensorSpec& tensor : described.tensors) {
      if (tensor.role == TensorRole::kInput) close_shape(tensor.shape, folder);
      const bool is_class = tensor.role == TensorRole::kTarget && !tensor.optional;
      if (is_class && tensor.range == 0) tensor.range = classes(folder);
    }
    return described;
  }

  [[nodiscard]] std::unique_ptr<Dataset> open(const Options& options, const SampleSpec& sample,
                                              std::uint64_t seed) const override {
    const auto& folder = options.as<FolderOptions>();
    const std::int64_t found = classes(folder);
    if (found > sample.target().range) {
      throw DataError(shown_path(folder.path) + " has " + std::to_string(found) +
                          " classes; the model has " + std::to_string(sample.target().range),
                      "raise the model's classes, or leave them out");
    }
    return std::make_unique<ImageDataset>(folder, sample, seed);
  }

  [[nodiscard]] std::unique_ptr<Dataset> open_for_model(const Options& options,
                                                        const SampleSpec& sample,
                                                        std::uint64_t seed,
                                                        const TrainedData& trained) const override {
    if (trained.description.empty()) return open(options, sample, seed);
    const FolderOptions folder = as_described(options.as<FolderOptions>(), trained.description);
    const bool predicts = trained.use == SampleUse::kPredict;
    return std::make_unique<ImageDataset>(folder, sample, seed,
                                          predicts ? ImageUse::kPredict : ImageUse::kLearn);
  }

  [[nodiscard]] Options on_files(const Options& options, const std::vector<std::string>& files,
                                 std::span<const std::string> /*asked*/) const override {
    if (files.size() != 1) {
      throw UsageError("--data names " + std::to_string(files.size()) +
                           " folders, and kind = \"images\" reads one",
                       "put links to them into one folder");
    }
    auto folder = options.as<FolderOptions>();
    folder.path = files.front();
    folder.validation_path = kNoFolder;
    folder.held_out_fraction = 0;
    return Options(folder);
  }

 private:
  static std::int64_t classes(const FolderOptions& folder) {
    return std::ssize(folder.classes.empty() ? classes_in(folder.path) : folder.classes);
  }

  static void close_shape(std::vector<std::int64_t>& shape, const FolderOptions& folder) {
    if (shape[0] == 0) shape[0] = folder.channels();
    if (shape[1] > 0 && shape[2] > 0) return;
    const std::int64_t size = folder.size > 0 ? folder.size : first_size(folder);
    if (shape[1] == 0) shape[1] = size;
    if (shape[2] == 0) shape[2] = size;
  }

  // The shorter side of the first image.
  static std::int64_t first_size(const FolderOptions& folder) {
    const ImageFolder files(folder.path, folder.classes);
    const auto path = files.path_of(files.files().front());
    const std::string content = read_image_file(path);
    std::string problem;
    const PixelSize size = image_size(std::as_bytes(std::span(content)), problem);
    if (!problem.empty()) {
      throw DataError("the image " + shown_path(path) + " " + problem,
                      "data.size says how large images are to be, whatever the first one is");
    }
    return std::min(size.width, size.height);
  }
};

}  // namespace

const DataKind& images_kind() {
  static const ImagesKind kKind;
  return kKind;
}

}  // namespace troika
