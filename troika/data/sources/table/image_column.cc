#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/images/image_moments.h>
#include <troika/data/sources/table/image_column.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace troika {
namespace {

// Moments come from rows of at most so many groups, as a group is read as a whole.
constexpr std::int64_t kMostMeasuredGroups = 16;

std::filesystem::path file_of(const PlannedColumn& column, const TableFiles& files,
                              std::string_view stored, std::size_t group) {
  std::filesystem::path path(stored);
  if (column.options.suffix != kNoSuffix) path += column.options.suffix;
  if (path.is_absolute() || is_remote(path.native())) return path;
  if (column.options.root != kAutoRoot) return place_below(column.options.root, path);
  return std::filesystem::path(files.files()[files.groups()[group].file].path).parent_path() / path;
}

// An image, as it is stored.
struct StoredImage {
  std::string_view bytes;  // or the path of a file
  std::size_t group;
  std::int64_t row;
  bool is_path;
};

StoredImage stored_image(const PlannedColumn& column, const TableFiles& files,
                         std::string_view bytes, std::size_t group, std::int64_t row,
                         bool is_path) {
  return {bytes, group, row, is_path || holds_paths(column, files)};
}

// Calls `use` with the bytes of an image. Returns what is wrong with it; empty where nothing is.
template <class Use>
std::string with_bytes(const PlannedColumn& column, const TableFiles& files,
                       const StoredImage& image, const Use& use) {
  if (!image.is_path) return use(std::as_bytes(std::span(image.bytes)));
  const std::filesystem::path path = file_of(column, files, image.bytes, image.group);
  std::string content;
  try {
    content = read_image_file(path);
  } catch (const DataError& error) {
    return std::string("is a path: ") + error.what();
  }
  const std::string problem = use(std::as_bytes(std::span(content)));
  return problem.empty() ? "" : "is " + shown_path(path) + ", which " + problem;
}

void complain_of(const PlannedColumn& column, const TableFiles& files, const StoredImage& image,
                 const std::string& problem) {
  if (problem.empty()) return;
  thrower_of_bad_values(files, image.group, column.column.name)(
      image.row, problem,
      (image.is_path ? "root = \"FOLDER\" says where paths start; " : "") +
          std::string(kBadRowHint));
}

// An image of the training side, with its bytes.
struct KeptImage {
  std::string bytes;
  std::size_t group;
  std::int64_t row;
  bool is_path;

  [[nodiscard]] StoredImage stored(const PlannedColumn& column, const TableFiles& files) const {
    return stored_image(column, files, bytes, group, row, is_path);
  }
};

// Some images of the training side, from groups spread over the table.
std::vector<KeptImage> some_images(const PlannedColumn& column, const TableFiles& files,
                                   const TableRows& rows, std::int64_t most) {
  std::vector<std::int64_t> groups;
  for (std::size_t group = 0; group < files.groups().size(); ++group) {
    if (rows.counts(Split::kTrain)[group] > 0) groups.push_back(static_cast<std::int64_t>(group));
  }
  std::vector<KeptImage> images;
  const std::int64_t read = std::min({std::ssize(groups), kMostMeasuredGroups, most});
  for (const std::int64_t place : even_sample(std::ssize(groups), read)) {
    const auto group = static_cast<std::size_t>(groups[static_cast<std::size_t>(place)]);
    const std::vector<std::int64_t> slots = rows.slots(group, Split::kTrain);
    const std::int64_t of_group = most / read;
    const std::string name = column.column.name;
    files.read(group, std::span(&name, 1), [&](std::size_t, const Values& values) {
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const std::int64_t slot = slots[static_cast<std::size_t>(values.first_row + i)];
        const Cell cell(values, i);
        if (slot < 0 || slot >= of_group || !cell.is_there()) continue;
        std::string room;
        images.push_back(
            {std::string(cell.word(room)), group, values.first_row + i, cell.is_path()});
      }
    });
  }
  return images;
}

void learn_size(PlannedColumn& column, std::vector<std::int64_t>& shape, const TableFiles& files,
                const TableRows& rows) {
  if (shape[0] == 0) shape[0] = column.options.channels();
  if (shape[1] > 0 && shape[2] > 0) return;
  if (column.options.size == 0) {
    const std::vector<KeptImage> first = some_images(column, files, rows, 1);
    if (first.empty()) return;
    const StoredImage image = first.front().stored(column, files);
    complain_of(column, files, image,
                with_bytes(column, files, image, [&](std::span<const std::byte> bytes) {
                  std::string problem;
                  const PixelSize size = image_size(bytes, problem);
                  column.options.size = std::min(size.width, size.height);
                  return problem;
                }));
  }
  if (shape[1] == 0) shape[1] = column.options.size;
  if (shape[2] == 0) shape[2] = column.options.size;
}

void learn_moments(PlannedColumn& column, const ImageShape& shape, const TableFiles& files,
                   const TableRows& rows, DecodeWorkers& workers) {
  const ImageReader reader(column.options, shape);
  const std::vector<KeptImage> images = some_images(column, files, rows, kMostMeasuredImages);
  if (images.empty()) return;
  std::vector<std::vector<ChannelSums>> sums(images.size());
  workers.for_each(std::ssize(images), [&](std::int64_t i) {
    const StoredImage image = images[static_cast<std::size_t>(i)].stored(column, files);
    std::vector<float> planes(static_cast<std::size_t>(shape.numbers()));
    complain_of(column, files, image,
                with_bytes(column, files, image, [&](std::span<const std::byte> bytes) {
                  return reader.read(bytes, std::nullopt, planes.data());
                }));
    sums[static_cast<std::size_t>(i)] = sums_of(planes, shape.channels);
  });
  ChannelMoments moments = moments_of(sums, shape.height * shape.width);
  column.options.mean = std::move(moments.mean);
  column.options.std = std::move(moments.std);
}

}  // namespace

bool holds_paths(const PlannedColumn& column, const TableFiles& files) {
  const TableColumn& found = files.column(column.column.name);
  const std::string& type = found.type_name;
  if (found.type == ValueType::kInteger) return true;
  return !type.starts_with("struct") && type.find("string") != std::string::npos;
}

ImageColumn::ImageColumn(const TablePlan& plan, std::size_t index, const TableFiles& files,
                         std::uint64_t key)
    : column_(plan.columns[index]), files_(files), index_(index), key_(key) {
  const std::vector<std::int64_t>& shape = plan.tensors[column_.tensor].shape;
  if (std::ranges::count(shape, 0) > 0) return;
  reader_.emplace(column_.options, ImageShape{shape[0], shape[1], shape[2]});
}

void ImageColumn::append_stored(const Values& values, std::span<const std::int64_t> slots,
                                StoredImages& out, const Complain& complain) const {
  std::string room;
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const std::int64_t row = values.first_row + i;
    if (slots[static_cast<std::size_t>(row)] < 0) continue;
    const Cell cell(values, i);
    if (cell.is_there()) {
      out.bytes += cell.word(room);
    } else {
      complain(row, "has no value", "missing = \"skip_row\" leaves such rows out");
    }
    out.ends.push_back(static_cast<std::int64_t>(out.bytes.size()));
    out.rows.push_back(row);
    out.paths.push_back(cell.is_path());
  }
}

void ImageColumn::read(const StoredImages& images, std::size_t group, std::int64_t slot,
                       const std::optional<std::int64_t>& ordinal, float* out) const {
  const auto place = static_cast<std::size_t>(slot);
  const auto begin = static_cast<std::size_t>(place == 0 ? 0 : images.ends[place - 1]);
  const std::string_view stored =
      std::string_view(images.bytes)
          .substr(begin, static_cast<std::size_t>(images.ends[place]) - begin);
  const StoredImage image =
      stored_image(column_, files_, stored, group, images.rows[place], images.paths[place]);
  complain_of(column_, files_, image,
              with_bytes(column_, files_, image, [&](std::span<const std::byte> bytes) {
                const auto draw =
                    ordinal ? std::optional(ImageDraw{key_, *ordinal}) : std::optional<ImageDraw>();
                return reader_->read(bytes, draw, out);
              }));
}

std::vector<std::string> ImageColumn::named_files(const std::stop_token& stop) const {
  std::vector<std::string> paths;
  std::unordered_set<std::string> known;
  const std::string& name = column_.column.name;
  for (std::size_t group = 0; group < files_.groups().size() && !stop.stop_requested(); ++group) {
    files_.read(group, std::span(&name, 1), [&](std::size_t, const Values& values) {
      std::string room;
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const Cell cell(values, i);
        if (!cell.is_there()) continue;
        if (!cell.is_path() && !holds_paths(column_, files_)) continue;
        std::string path = file_of(column_, files_, cell.word(room), group).string();
        if (known.insert(path).second) paths.push_back(std::move(path));
      }
    });
  }
  return paths;
}

std::string ImageColumn::check(const Cell& cell, std::size_t group) const {
  if (!cell.is_there()) return "has no value";
  std::string room;
  const StoredImage image =
      stored_image(column_, files_, cell.word(room), group, 0, cell.is_path());
  return with_bytes(column_, files_, image, [&](std::span<const std::byte> bytes) {
    return damage_of(bytes, column_.options.color);
  });
}

void learn_images(TablePlan& plan, const TableFiles& files, const TableRows& rows, Lesson lesson,
                  DecodeWorkers& workers) {
  for (PlannedColumn& column : plan.columns) {
    if (column.options.as != ColumnUse::kImage) continue;
    std::vector<std::int64_t>& shape = plan.tensors[column.tensor].shape;
    learn_size(column, shape, files, rows);
    if (lesson == Lesson::kSizes || !column.options.mean.empty()) continue;
    learn_moments(column, {shape[0], shape[1], shape[2]}, files, rows, workers);
  }
}

}  // namespace troika
