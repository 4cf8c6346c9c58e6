#include <ATen/ATen.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/prefetch_line.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/kept_table_columns.h>
#include <troika/data/sources/table/label_numbers.h>
#include <troika/data/sources/table/row_screen.h>
#include <troika/data/sources/table/table_dataset.h>
#include <troika/data/sources/table/table_description.h>
#include <troika/data/sources/table/text_format.h>
#include <troika/data/sources/text/text_documents.h>
#include <troika/data/tokenizer_file.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_map>

namespace troika {
namespace {

// Held-out samples come in one order, whatever the run's seed.
constexpr std::uint64_t kHeldOutOrderSeed = 0;

constexpr std::string_view kTrainedHint = "--set data.on_bad_row=skip leaves such rows out";

// What is told of files that are no tables.
std::string note_of_others(const std::vector<std::string>& left_out) {
  if (left_out.empty()) return "";
  return plural(std::ssize(left_out), "file") + " left out, the first is " +
         shown_path(left_out.front()) + ": neither its first bytes nor its name are of a table";
}

// Samples whose target counts. Losses of several targets a sample count these themselves.
std::int64_t counted_targets(const Microbatch& batch, std::span<const TensorSpec> specs) {
  const auto target = std::ranges::find(specs, TensorRole::kTarget, &TensorSpec::role);
  const bool is_class =
      target != specs.end() && target->dtype == at::kLong && target->shape.empty();
  if (!is_class) return batch.samples();
  return batch.tensors.at(target->name).ne(kIgnoredTarget).sum().item<std::int64_t>();
}

}  // namespace

// The files of the held-out side come after those to train on, and those of the test side last.
OpenTable::Search::Search(const TableOptions& options, const TextFormat& format) {
  struct Named {
    const char* key;
    const std::vector<std::string>& patterns;
    RowSide side;
  };
  const Named all[] = {{"data.files", options.files, RowSide::kTrain},
                       {"data.held_out_files", options.held_out_files, RowSide::kHeldOut},
                       {"data.test_files", options.test_files, RowSide::kTest}};
  std::map<std::string, std::string> key_of;  // of each file by its identity
  std::vector<std::string> left_out;
  for (const auto& [key, patterns, side] : all) {
    if (patterns.empty()) continue;
    TableSearch found = search_tables(patterns, format);
    for (FoundFile& file : found.files) {
      const auto [known, is_new] = key_of.emplace(identity_of(file), key);
      if (!is_new && known->second != key) {
        throw DataError(shown_path(file.path) + " is in " + known->second + " and in " + key,
                        "a file belongs to one side");
      }
      files.push_back(std::move(file));
      sides.push_back(side);
    }
    left_out.insert(left_out.end(), found.left_out.begin(), found.left_out.end());
  }
  note = note_of_others(left_out);
}

namespace {

// Rows are drawn where nothing names their side.
double drawn_fraction(const TableOptions& options) {
  const bool named = !options.held_out_files.empty() || options.split_column != kNoColumn;
  return named ? 0 : options.held_out_fraction;
}

// The type that the cache keeps; samples get the model's.
at::ScalarType kept_type(at::ScalarType wanted) {
  if (wanted == at::kDouble || wanted == at::kLong) return wanted;
  return isFloatingType(wanted) ? at::kFloat : at::kLong;
}

std::vector<DataFile> data_files(const OpenTable& table) {
  std::vector<DataFile> files;
  for (const FoundFile& file : table.files.files()) {
    const std::uint64_t head = is_remote(file.path) ? 0 : keys_of(std::span(&file, 1)).front();
    files.push_back({file.path, file.size, head});
  }
  return files;
}

// Those of text columns, each once. They are no part of the fingerprint of the files: the plan's
// description has their hashes.
void add_tokenizers(const TablePlan& plan, std::vector<DataFile>& files) {
  for (const PlannedColumn& column : plan.columns) {
    if (column.options.as != ColumnUse::kText || column.options.encode == Encode::kHash) continue;
    const auto file =
        tokenizer_file(column.options.tokenizer, content_hash(column.tokens->fingerprint()));
    if (file && std::ranges::find(files, *file) == files.end()) files.push_back(*file);
  }
}

std::string fingerprint_of(const OpenTable& table, std::span<const DataFile> files) {
  ContentHash hash;
  const auto add = [&hash](auto number) { hash.update(std::to_string(number) + " "); };
  for (const DataFile& file : files) {
    add(file.size);
    if (!is_remote(file.path)) add(file.head);
  }
  for (const RowGroup& group : table.files.groups()) add(group.rows);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) add(table.rows.total(split));
  hash.update(table.plan.describe());
  return hex(hash.digest());
}

// The bytes that the files have for a row, where they hold images.
std::int64_t stored_image_bytes(const OpenTable& table) {
  const bool stored = std::ranges::any_of(table.plan.columns, [&](const PlannedColumn& column) {
    return column.options.as == ColumnUse::kImage && !holds_paths(column, table.files);
  });
  if (!stored) return 0;
  std::int64_t bytes = 0;
  for (const FoundFile& file : table.files.files()) bytes += file.size;
  return bytes / table.files.rows();
}

// Copies rows of cached tensors into those of samples. Rows come from all over a window, which no
// cache holds: all are fetched before the first is copied.
class Gather {
 public:
  explicit Gather(GroupCache& cache) : cache_(cache) {}

  // Adds a row for the next sample. Returns the row's number in the table, where the cache knows
  // it.
  std::int64_t add(const RowPosition& from, std::int64_t source) {
    const DecodedGroup& group = group_of(from.group);
    const std::int64_t row = group.row(source, from.row);
    rows_.push_back({&group, row});
    for (const at::Tensor& each : group.tensors) {
      const std::span<const char> bytes = bytes_of(each, row);
      for (std::size_t i = 0; i < std::min(bytes.size(), kFetched); i += kLine) {
        prefetch_line(&bytes[i]);
      }
    }
    return group.numbers.empty() ? -1 : group.numbers[static_cast<std::size_t>(row)];
  }
  // Copies the rows of the model's tensor `index` to `out`.
  void copy(std::size_t index, const at::Tensor& out) const {
    auto* to = static_cast<char*>(out.mutable_data_ptr());
    for (const auto& [group, row] : rows_) {
      const std::span<const char> bytes = bytes_of(group->tensors[index], row);
      std::memcpy(to, bytes.data(), bytes.size());
      to += bytes.size();
    }
  }

 private:
  const DecodedGroup& group_of(std::size_t group) {
    std::shared_ptr<const DecodedGroup>& rows = used_[group];
    if (!rows) rows = cache_.get(group);
    return *rows;
  }

  static constexpr std::size_t kLine = 64, kFetched = 4 * kLine;  // the processor sees what follows

  static std::span<const char> bytes_of(const at::Tensor& rows, std::int64_t row) {
    const std::size_t bytes = static_cast<std::size_t>(rows.size(1)) * rows.element_size();
    return {static_cast<const char*>(rows.const_data_ptr()) + static_cast<std::size_t>(row) * bytes,
            bytes};
  }

  struct Row {
    const DecodedGroup* group;
    std::int64_t row;
  };

  GroupCache& cache_;
  std::vector<Row> rows_;
  std::unordered_map<std::size_t, std::shared_ptr<const DecodedGroup>> used_;
};

}  // namespace

OpenTable::OpenTable(const TableOptions& options, const SampleSpec& sample, Lesson lesson)
    : search(options, text_format_of(options)),
      files(search.files, text_format_of(options), time_columns_of(options)),
      rows(files.groups(), drawn_fraction(options), options.test_fraction),
      plan(plan_columns(files, options, sample)) {
  choose_rows(options);
  learn_label_numbers(plan, files, rows, options.on_bad_row);
  leave_out_bad_rows(options);
  if (rows.total(Split::kTrain) == 0) {
    std::string hint = "set data.held_out_fraction lower, or to 0";
    if (drawn_fraction(options) == 0) hint = "check what is held out, and what data.filter leaves";
    if (!options.filter.empty() || !options.filter_any.empty())
      hint = "check data.filter: rows without a value meet no condition";
    for (const std::string& each : warnings) hint = each;
    throw DataError("no row is left to train on: all " + std::to_string(files.rows()) +
                        " are held out or left out",
                    hint);
  }
  learn_columns(plan, files, rows, lesson);
  learn_images(plan, files, rows, lesson, *workers);
  lay_out_columns(plan);
  target_names = plan.target_names();
  target_scales = plan.target_scales();
  warn_of_one_class();
}

void OpenTable::warn_of_one_class() {
  for (const PlannedColumn& each : plan.columns) {
    if (each.options.as != ColumnUse::kLabel || !each.only_value) continue;
    warnings.push_back("the label " + quote(each.column.name) + " is " +
                       quote(each.shown_word(*each.only_value)) +
                       " in every row: a model of one class learns nothing");
  }
}

OpenTable::OpenTable(const TableOptions& options, const SampleSpec& sample,
                     const TrainedData& trained)
    : search(options, text_format_of(options)),
      files(search.files, text_format_of(options, text_columns_of(trained.description)),
            time_columns_of(options, time_columns_of(trained.description))),
      rows(files.groups(), drawn_fraction(options), options.test_fraction),
      plan(read_description(trained.description, sample)),
      target_names(plan.target_names()),
      target_scales(plan.target_scales()) {
  if (trained.use == SampleUse::kPredict) {
    std::erase_if(plan.columns, [&](const PlannedColumn& each) {
      return each.is_of_target(plan.tensors) || each.options.as == ColumnUse::kWeight;
    });
  }
  find_described_columns(plan, files);
  choose_rows(options);
  leave_out_bad_rows(options);
}

void OpenTable::choose_rows(const TableOptions& options) {
  if (!options.held_out_files.empty() || !options.test_files.empty()) {
    for (std::size_t group = 0; group < files.groups().size(); ++group) {
      const RowSide side = search.sides[files.groups()[group].file];
      if (side != RowSide::kTrain) rows.mark_group(group, side);
    }
    rows.count();
  }
  warnings = screen_rows(rows, files, plan, options);
  if (options.evaluates_test) {
    rows.hold_out_test();
  } else if (options.split_column != kNoColumn) {
    rows.hold_out_test_if_alone();
  }
  if (!search.note.empty()) warnings.push_back(search.note);
}

void OpenTable::leave_out_bad_rows(const TableOptions& options) {
  if (options.on_bad_row != OnBadRow::kSkip) return;
  for (std::string& each : screen_values(rows, files, plan)) warnings.push_back(std::move(each));
}

TableDataset::TableDataset(const TableOptions& options, const SampleSpec& sample,
                           std::uint64_t seed, const TrainedData* trained)
    : table_(trained != nullptr ? OpenTable(options, sample, *trained)
                                : OpenTable(options, sample, Lesson::kAll)),
      files_(data_files(table_)),
      fingerprint_(fingerprint_of(table_, files_)),
      warnings_(table_.warnings) {
  add_tokenizers(table_.plan, files_);
  if (trained != nullptr) {
    in_order_ = trained->use == SampleUse::kPredict;
    hint_ = kTrainedHint;
  }
  for (const PlannedColumn& column : table_.plan.columns) {
    encoders_.emplace_back(column, table_.plan.tensors[column.tensor]);
  }
  for (std::size_t i = 0; i < table_.plan.columns.size(); ++i) {
    const PlannedColumn& column = table_.plan.columns[i];
    if (column.options.as != ColumnUse::kImage) continue;
    const std::uint64_t key = stream_key(seed, "data.table.draw." + column.column.name);
    images_.emplace_back(table_.plan, i, table_.files, key);
  }
  const std::int64_t cache_bytes = options.cache_mb << 20;
  if (options.balance_classes && trained == nullptr && table_.rows.total(Split::kTrain) > 0) {
    classes_.emplace(table_.plan, table_.files, table_.rows);
  }
  train_ = open_side(Split::kTrain, seed, cache_bytes);
  held_out_ = open_side(Split::kHeldOut, kHeldOutOrderSeed, cache_bytes / 4);
  if (held_out_ || drawn_fraction(options) <= 0) return;
  warnings_.push_back("no row is held out: data.held_out_fraction is too small for " +
                      plural(table_.files.rows(), "row") + ", so evaluation is off");
}

std::unique_ptr<TableDataset::Side> TableDataset::open_side(Split split, std::uint64_t seed,
                                                            std::int64_t cache_bytes) const {
  if (table_.rows.total(split) == 0) return nullptr;
  const bool trains = split == Split::kTrain;
  const std::uint64_t key = stream_key(seed, trains ? "data.table.train" : "data.table.held_out");
  // Half of the cache: at the end of a window the next one comes in.
  const std::int64_t sample_bytes = table_.plan.sample_bytes() + stored_image_bytes(table_);
  const std::int64_t window_rows = cache_bytes / 2 / std::max<std::int64_t>(1, sample_bytes);
  // A group that is larger would drive out the one that is read.
  const bool two_fit = std::ranges::max(table_.rows.counts(split)) <= window_rows;
  // An aggregate whose members cannot be moved. NOLINTBEGIN(modernize-make-unique)
  return std::unique_ptr<Side>(new Side{
      trains && classes_ ? SideOrder(key, classes_->counts(), window_rows)
                         : SideOrder(key, table_.rows.counts(split), window_rows),
      GroupCache(cache_bytes, [this, split](std::size_t group) { return decode(group, split); }),
      trains && two_fit && !in_order_});
  // NOLINTEND(modernize-make-unique)
}

std::int64_t TableDataset::samples(Split split) const {
  return table_.rows.total(split);
}

SampleRef TableDataset::at(Split split, std::int64_t ordinal) const {
  check(split == Split::kTrain || ordinal < samples(split), "a held-out sample that is not there");
  if (in_order_) return {.index = ordinal, .ordinal = ordinal};
  return side(split).order.at(ordinal);
}

DecodedGroup TableDataset::decode(std::size_t group, Split split) const {
  const TablePlan& plan = table_.plan;
  const std::vector<std::int64_t> slots = table_.rows.slots(group, split);
  DecodedGroup decoded;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const auto writes = [i](const PlannedColumn& each) {
      return each.tensor == i || each.mask == i;
    };
    const std::array<std::int64_t, 2> shape = {table_.rows.counts(split)[group],
                                               plan.cached_width(i)};
    const at::ScalarType type = kept_type(plan.tensors[i].dtype);
    const bool is_written = std::ranges::any_of(plan.columns, writes);
    decoded.tensors.push_back(is_written ? at::empty(shape, type) : at::zeros(shape, type));
  }
  for (std::size_t row = 0; in_order_ && row < slots.size(); ++row) {
    const std::int64_t first = table_.files.groups()[group].first_row;
    if (slots[row] >= 0) decoded.numbers.push_back(first + static_cast<std::int64_t>(row));
  }
  const std::vector<std::string> names = plan.names();
  decoded.images.resize(images_.size());
  table_.files.read(group, names, [&](std::size_t column, const Values& values) {
    if (const ImageColumn* images = image_column(column)) {
      images->append_stored(values, slots,
                            decoded.images[static_cast<std::size_t>(images - images_.data())],
                            thrower_of_bad_values(table_.files, group, names[column]));
      return;
    }
    const PlannedColumn& planned = plan.columns[column];
    encoders_[column].encode(values, slots, decoded.tensors[planned.tensor],
                             thrower_of_bad_values(table_.files, group, names[column], hint_),
                             planned.mask ? decoded.tensors[*planned.mask] : at::Tensor());
  });
  if (classes_ && split == Split::kTrain) {
    decoded.rows_of_classes = classes_->rows_of(decoded.tensors[classes_->tensor()]);
  }
  return decoded;
}

void TableDataset::read_ahead(Side& side, const SampleRef& sample) const {
  if (!side.reads_ahead) return;
  const std::int64_t window = side.order.window_of(sample);
  if (side.read_ahead_of.exchange(window) == window) return;
  side.cache.prefetch(side.order.next_groups(sample));
}

Microbatch TableDataset::microbatch(Split split, std::span<const SampleRef> samples,
                                    std::int64_t step) const {
  const auto count = static_cast<std::int64_t>(samples.size());
  Microbatch batch;
  batch.step = step;
  batch.sample_ids = at::empty({count}, at::kLong);
  const std::vector<TensorSpec>& specs = table_.plan.tensors;
  std::vector<at::Tensor> rows;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    rows.push_back(at::empty({count, table_.plan.width(i)}, kept_type(specs[i].dtype)));
  }
  Gather gather(side(split).cache);
  auto* ids = batch.sample_ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const SampleRef& sample = samples[static_cast<std::size_t>(i)];
    const std::int64_t number = gather.add(side(split).order.position(sample), sample.source);
    ids[i] = in_order_ ? number : sample.ordinal;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) gather.copy(i, rows[i]);
  if (count > 0) read_ahead(side(split), samples.back());
  if (!images_.empty()) read_images(split, samples, step, rows);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::vector<std::int64_t> shape = specs[i].shape;
    shape.insert(shape.begin(), count);
    batch.tensors.add(specs[i].name, rows[i].view(shape).to(specs[i].dtype));
  }
  batch.valid = counted_targets(batch, specs);
  return batch;
}

const ImageColumn* TableDataset::image_column(std::size_t column) const {
  const auto found = std::ranges::find(images_, column, &ImageColumn::index);
  return found == images_.end() ? nullptr : &*found;
}

void TableDataset::read_images(Split split, std::span<const SampleRef> samples, std::int64_t step,
                               std::span<const at::Tensor> out) const {
  // Steps count from 1: what is asked for step 0 is not trained on.
  const bool draws = split == Split::kTrain && step > 0;
  std::vector<RowPosition> places;
  std::vector<std::shared_ptr<const DecodedGroup>> groups;
  for (const SampleRef& sample : samples) {
    places.push_back(side(split).order.position(sample));
    groups.push_back(side(split).cache.get(places.back().group));
    places.back().row = groups.back()->row(sample.source, places.back().row);
  }
  for (std::size_t k = 0; k < images_.size(); ++k) {
    const at::Tensor& tensor = out[images_[k].tensor()];
    auto* const pixels = tensor.mutable_data_ptr<float>();
    table_.workers->for_each(std::ssize(samples), [&](std::int64_t i) {
      const auto sample = static_cast<std::size_t>(i);
      images_[k].read(groups[sample]->images[k], places[sample].group, places[sample].row,
                      draws ? std::optional(samples[sample].ordinal) : std::nullopt,
                      pixels + i * tensor.size(1));
    });
  }
}

std::unique_ptr<KeptColumns> TableDataset::open_columns(std::span<const std::string> names) const {
  check(in_order_, "columns of samples whose ids are no rows");
  return std::make_unique<KeptTableColumns>(table_.files, names);
}

std::vector<DataFile> TableDataset::named_files(const std::stop_token& stop) const {
  std::vector<DataFile> files;
  for (const ImageColumn& column : images_) {
    for (std::string& path : column.named_files(stop)) {
      std::error_code error;
      const std::uintmax_t size = is_remote(path) ? 0 : std::filesystem::file_size(path, error);
      files.push_back({std::move(path), error ? -1 : static_cast<std::int64_t>(size), 0});
    }
  }
  return files;
}

std::vector<std::string> TableDataset::notes() const {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < encoders_.size(); ++i) {
    const std::string note = encoders_[i].unknown_words().note(table_.plan.columns[i].column.name);
    if (!note.empty()) notes.push_back(note);
  }
  return notes;
}

DatasetFacts TableDataset::facts() const {
  DatasetFacts facts;
  facts.rows = table_.rows.total(Split::kTrain) + table_.rows.total(Split::kHeldOut);
  facts.held_out_rows = table_.rows.total(Split::kHeldOut);
  return facts;
}

std::int64_t TableDataset::decoded_groups(Split split) const {
  return side(split).cache.decoded();
}

}  // namespace troika
