// Internal: images of a folder a class as samples.
#pragma once

#include <troika/data/dataset.h>
#include <troika/data/images/decode_workers.h>
#include <troika/data/images/image_reader.h>
#include <troika/data/sources/images/image_folder.h>
#include <troika/data/sources/images/options.h>
#include <troika/nn/sample_spec.h>

#include <optional>
#include <string>
#include <vector>

namespace troika {

// The use that images are read for: with their classes, in a drawn order; or without them, in the
// order of their names, which numbers them. These have the class 0.
enum class ImageUse { kLearn, kPredict };

class ImageDataset final : public Dataset {
 public:
  // Lists the files and, where the options leave mean and deviation out, decodes up to 1,024 of the
  // training side. Requires a sample of an image and a class, whose sizes are known.
  ImageDataset(const FolderOptions& options, const SampleSpec& sample, std::uint64_t seed,
               ImageUse use = ImageUse::kLearn);

  [[nodiscard]] std::int64_t samples(Split split) const override;
  [[nodiscard]] SampleRef at(Split split, std::int64_t ordinal) const override;
  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override;
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::vector<DataFile> files() const override;
  [[nodiscard]] std::optional<double> bytes_per_token() const override { return std::nullopt; }
  [[nodiscard]] DatasetFacts facts() const override;
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::vector<std::string> target_names() const override { return options_.classes; }
  [[nodiscard]] std::vector<std::string> sample_names() const override;

 private:
  // A side: its files, and the order in which they come.
  struct Side {
    const ImageFolder* folder = nullptr;
    std::vector<std::size_t> files;  // numbers in the folder
    // The files that the order draws from: all places in `files`, or those of each class that has
    // one.
    std::vector<std::vector<std::size_t>> sources;
    std::optional<Sampler> order;
  };

  [[nodiscard]] const Side& side(Split split) const {
    return split == Split::kTrain ? train_ : held_out_;
  }
  [[nodiscard]] const ImageFile& file(const Side& side, std::int64_t index) const {
    return side.folder->files()[side.files[static_cast<std::size_t>(index)]];
  }
  // Returns the place of a sample among the side's files.
  [[nodiscard]] static std::int64_t position_of(const Side& side, const SampleRef& sample);
  void choose_sides();
  void draw_order(Side& side, std::uint64_t key, bool balances) const;
  void leave_out_bad_images();
  void learn_normalisation();
  void check_sides();
  // Notes the sizes of the files, too.
  [[nodiscard]] std::string make_fingerprint();

  FolderOptions options_;
  ImageUse use_;
  std::string input_, target_;
  ImageShape shape_;
  ImageFolder folder_;
  std::optional<ImageFolder> validation_;
  Side train_, held_out_;
  std::uint64_t draw_key_;
  mutable DecodeWorkers workers_;
  std::vector<std::string> warnings_;
  std::optional<ImageReader> reader_;
  std::vector<std::int64_t> sizes_;  // of the files of both sides; 0 in an object store
  std::string fingerprint_;
};

// Returns the options that data need which a model has been trained on others for, whose
// description() is given: the same classes, size and normalisation.
[[nodiscard]] FolderOptions as_described(FolderOptions options, const std::string& description);

}  // namespace troika
