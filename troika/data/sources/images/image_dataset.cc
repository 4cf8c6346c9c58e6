#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/data/images/image_moments.h>
#include <troika/data/sources/images/image_dataset.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace troika {
namespace {

// The sides, and the order of held-out images, are the same with any seed of the run.
const std::uint64_t kImageSidesKey = stream_key(0, "data.images.sides");
const std::uint64_t kImageOrderSeed = stream_key(0, "data.images.held_out");

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

DataError bad_image(const std::filesystem::path& path, const std::string& problem) {
  return DataError("the image " + shown_path(path) + " " + problem,
                   "data.on_bad_image = \"skip\" leaves such images out");
}

ImageShape shape_of(const TensorSpec& input) {
  return {input.shape[0], input.shape[1], input.shape[2]};
}

// Stays the same whatever else lies beside the file.
std::uint64_t hash_of(const ImageFolder& folder, const ImageFile& file) {
  const std::string& name = folder.classes()[static_cast<std::size_t>(file.label)];
  ContentHash hash;
  // Without classes the file's name begins with what else is its class.
  if (!name.empty()) hash.update(name).update("/");
  return hash.update(file.name).digest();
}

}  // namespace

ImageDataset::ImageDataset(const FolderOptions& options, const SampleSpec& sample,
                           std::uint64_t seed, ImageUse use)
    : options_(options),
      use_(use),
      input_(sample.input().name),
      target_(sample.target().name),
      shape_(shape_of(sample.input())),
      folder_(use == ImageUse::kPredict ? ImageFolder::without_classes(options.path)
                                        : ImageFolder(options.path, options.classes)),
      draw_key_(stream_key(seed, "data.images.draw")),
      workers_(options.workers) {
  if (use == ImageUse::kLearn) options_.classes = folder_.classes();
  if (options.validation_path != kNoFolder) {
    validation_.emplace(options.validation_path, options_.classes);
  }
  choose_sides();
  if (options.on_bad_image == OnBadImage::kSkip) leave_out_bad_images();
  check_sides();
  if (options_.mean.empty()) learn_normalisation();
  reader_.emplace(options_, shape_);
  if (use == ImageUse::kLearn) {
    draw_order(train_, stream_key(seed, "data.images.train"), options_.balance_classes);
    draw_order(held_out_, kImageOrderSeed, false);
  }
  fingerprint_ = make_fingerprint();
}

void ImageDataset::draw_order(Side& side, std::uint64_t key, bool balances) const {
  if (side.files.empty()) return;
  side.sources.resize(balances ? options_.classes.size() : 1);
  for (std::size_t i = 0; i < side.files.size(); ++i) {
    const ImageFile& one = side.folder->files()[side.files[i]];
    side.sources[balances ? static_cast<std::size_t>(one.label) : 0].push_back(i);
  }
  std::erase_if(side.sources, [](const auto& each) { return each.empty(); });
  std::vector<std::int64_t> sizes;
  for (const auto& each : side.sources) sizes.push_back(std::ssize(each));
  if (std::ssize(sizes) > Mixture::kBlock) {
    throw DataError("data.balance_classes takes turns among at most " +
                    std::to_string(Mixture::kBlock) + " classes; there are " +
                    std::to_string(sizes.size()));
  }
  side.order.emplace(key, sizes, std::vector<double>(sizes.size(), 1.0));
}

void ImageDataset::choose_sides() {
  train_.folder = &folder_;
  held_out_.folder = validation_ ? &*validation_ : &folder_;
  const double fraction = validation_ ? 0 : options_.held_out_fraction;
  const auto limit = static_cast<std::uint64_t>(std::ldexp(fraction, 64));
  for (std::size_t i = 0; i < folder_.files().size(); ++i) {
    const bool is_held_out =
        fraction > 0 && mix_bits(kImageSidesKey ^ hash_of(folder_, folder_.files()[i])) < limit;
    (is_held_out ? held_out_ : train_).files.push_back(i);
  }
  if (validation_) {
    held_out_.files.resize(validation_->files().size());
    std::iota(held_out_.files.begin(), held_out_.files.end(), std::size_t{0});
  }
  if (!folder_.left_out().empty()) warnings_.push_back(folder_.left_out());
  if (validation_ && !validation_->left_out().empty()) {
    warnings_.push_back(validation_->left_out());
  }
}

void ImageDataset::leave_out_bad_images() {
  std::int64_t bad = 0;
  std::string first;
  for (Side* side : {&train_, &held_out_}) {
    std::vector<std::string> problems(side->files.size());
    workers_.for_each(std::ssize(problems), [&](std::int64_t i) {
      const auto path = side->folder->path_of(file(*side, i));
      problems[static_cast<std::size_t>(i)] = damage_of_file(path, options_.color);
    });
    std::vector<std::size_t> good;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      if (problems[i].empty()) {
        good.push_back(side->files[i]);
      } else if (bad++ == 0) {
        first = shown_path(side->folder->path_of(side->folder->files()[side->files[i]])) +
                ", which " + problems[i];
      }
    }
    side->files = std::move(good);
  }
  if (bad > 0) {
    warnings_.push_back(plural(bad, "bad image") + " left out, the first is " + first);
  }
}

void ImageDataset::check_sides() {
  if (use_ == ImageUse::kPredict) return;
  if (train_.files.empty()) {
    throw DataError("no image is left to train on: all " + std::to_string(folder_.files().size()) +
                        " are held out or left out",
                    "set data.held_out_fraction lower, or to 0");
  }
  if (!held_out_.files.empty() || validation_ || options_.held_out_fraction == 0) return;
  warnings_.push_back("no image is held out: data.held_out_fraction is too small for " +
                      plural(std::ssize(folder_.files()), "image") + ", so evaluation is off");
}

void ImageDataset::learn_normalisation() {
  const ImageReader reader(options_, shape_);
  const std::vector<std::int64_t> chosen =
      even_sample(std::ssize(train_.files), kMostMeasuredImages);
  std::vector<std::vector<ChannelSums>> sums(chosen.size());
  workers_.for_each(std::ssize(chosen), [&](std::int64_t i) {
    const auto path = folder_.path_of(file(train_, chosen[static_cast<std::size_t>(i)]));
    const std::string content = read_image_file(path);
    std::vector<float> planes(static_cast<std::size_t>(shape_.numbers()));
    const std::string problem = reader.read(bytes_of(content), std::nullopt, planes.data());
    if (!problem.empty()) throw bad_image(path, problem);
    sums[static_cast<std::size_t>(i)] = sums_of(planes, shape_.channels);
  });
  ChannelMoments moments = moments_of(sums, shape_.height * shape_.width);
  options_.mean = std::move(moments.mean);
  options_.std = std::move(moments.std);
}

std::int64_t ImageDataset::samples(Split split) const {
  return std::ssize(side(split).files);
}

std::int64_t ImageDataset::position_of(const Side& side, const SampleRef& sample) {
  if (side.sources.empty()) return sample.index;
  return static_cast<std::int64_t>(side.sources[static_cast<std::size_t>(sample.source)]
                                               [static_cast<std::size_t>(sample.index)]);
}

std::vector<std::string> ImageDataset::sample_names() const {
  if (use_ != ImageUse::kPredict) return {};
  std::vector<std::string> names;
  for (const ImageFile& each : folder_.files()) names.push_back(each.name);
  return names;
}

SampleRef ImageDataset::at(Split split, std::int64_t ordinal) const {
  check(split == Split::kTrain || ordinal < samples(split), "a held-out sample that is not there");
  const Side& chosen = side(split);
  if (chosen.order) return chosen.order->at(ordinal);
  const std::size_t number = chosen.files[static_cast<std::size_t>(ordinal)];
  return {0, 0, ordinal, static_cast<std::int64_t>(number)};
}

Microbatch ImageDataset::microbatch(Split split, std::span<const SampleRef> samples,
                                    std::int64_t step) const {
  const auto count = std::ssize(samples);
  const at::Tensor images =
      at::empty({count, shape_.channels, shape_.height, shape_.width}, at::kFloat);
  Microbatch batch;
  batch.step = step;
  batch.valid = count;
  batch.sample_ids = at::empty({count}, at::kLong);
  const at::Tensor labels = at::empty({count}, at::kLong);
  auto* const ids = batch.sample_ids.mutable_data_ptr<std::int64_t>();
  auto* const targets = labels.mutable_data_ptr<std::int64_t>();
  auto* const pixels = images.mutable_data_ptr<float>();
  // Steps count from 1: what is asked for step 0 is not trained on.
  const bool draws = split == Split::kTrain && step > 0;
  workers_.for_each(count, [&](std::int64_t i) {
    const SampleRef& sample = samples[static_cast<std::size_t>(i)];
    const ImageFile& one = file(side(split), position_of(side(split), sample));
    const auto path = side(split).folder->path_of(one);
    const std::string content = read_image_file(path);
    const std::string problem = reader_->read(
        bytes_of(content),
        draws ? std::optional(ImageDraw{draw_key_, sample.ordinal}) : std::optional<ImageDraw>(),
        pixels + i * shape_.numbers());
    if (!problem.empty()) throw bad_image(path, problem);
    ids[i] = sample.ordinal;
    targets[i] = one.label;
  });
  batch.tensors.add(input_, images);
  batch.tensors.add(target_, labels);
  return batch;
}

std::string ImageDataset::make_fingerprint() {
  ContentHash hash;
  for (const Side* side : {&train_, &held_out_}) {
    hash.update(std::to_string(side->files.size()) + " ");
    for (const std::size_t index : side->files) {
      const ImageFile& file = side->folder->files()[index];
      std::error_code error;
      const auto size = std::filesystem::file_size(side->folder->path_of(file), error);
      hash.update(std::to_string(hash_of(*side->folder, file)) + " " + std::to_string(size) + " ");
      sizes_.push_back(error ? file.bytes : static_cast<std::int64_t>(size));
    }
  }
  hash.update(description());
  return hex(hash.digest());
}

std::vector<DataFile> ImageDataset::files() const {
  std::vector<DataFile> files;
  for (const Side* side : {&train_, &held_out_}) {
    for (const std::size_t index : side->files) {
      const ImageFile& file = side->folder->files()[index];
      files.push_back({side->folder->path_of(file).string(), sizes_[files.size()], 0});
    }
  }
  return files;
}

DatasetFacts ImageDataset::facts() const {
  DatasetFacts facts;
  facts.rows = samples(Split::kTrain) + samples(Split::kHeldOut);
  facts.held_out_rows = samples(Split::kHeldOut);
  facts.rows_are = "images";
  return facts;
}

std::string ImageDataset::description() const {
  nlohmann::ordered_json json;
  json["tensors"] = {{{"name", input_}, {"shape", {shape_.channels, shape_.height, shape_.width}}},
                     {{"name", target_}, {"shape", nlohmann::json::array()}}};
  json["mean"] = options_.mean;
  json["std"] = options_.std;
  json["classes"] = options_.classes;
  // Names of files may be any bytes.
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

FolderOptions as_described(FolderOptions options, const std::string& description) {
  const auto json = nlohmann::json::parse(description, nullptr, false);
  const auto take = [&](const char* key, auto& to) {
    if (!json.is_object() || !json.contains(key)) {
      throw DataError("the description of the training data has no " + quote(key),
                      "is data.json of the run's folder whole?");
    }
    try {
      json[key].get_to(to);
    } catch (const nlohmann::json::exception&) {
      throw DataError(
          "the description of the training data says something else than " + quote(key) + " there",
          "is data.json of the run's folder whole?");
    }
  };
  take("mean", options.mean);
  take("std", options.std);
  take("classes", options.classes);
  if (!options.mean.empty() && !options.classes.empty() && refusal_of(options).empty()) {
    return options;
  }
  throw DataError("the description of the training data is not that of images",
                  "is data.json of the run's folder whole?");
}

}  // namespace troika
