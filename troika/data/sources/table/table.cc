#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/column_plan.h>
#include <troika/data/sources/table/options.h>
#include <troika/data/sources/table/row_filter.h>
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/table/table_dataset.h>
#include <troika/data/sources/table/text_format.h>

#include <algorithm>
#include <iterator>

namespace troika {
namespace {

// A model whose kind is not known yet has none.
std::string shown_model(std::string_view kind) {
  return kind.empty() ? "the model" : "kind = \"" + std::string(kind) + "\"";
}

class TableKind final : public Declared<DataKind, TableOptions> {
 public:
  TableKind() : Declared("table", table_keys()) {}

  void check(const Options& options, const Origins& origins) const override {
    for (const ColumnOptions& column : options.as<TableOptions>().columns) {
      const std::string refusal = refusal_of(column);
      if (!refusal.empty())
        origins.fail({"data.columns"}, "columns." + column.name + ": " + refusal);
    }
    check_sides(options.as<TableOptions>(), origins);
    const FormatRefusal format = refusal_of_format(options.as<TableOptions>());
    if (!format.message.empty()) origins.fail({format.key}, format.message, format.hint);
    check_conditions(options.as<TableOptions>().filter, "data.filter", origins);
    check_conditions(options.as<TableOptions>().filter_any, "data.filter_any", origins);
  }

  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override {
    const auto& table = options.as<TableOptions>();
    if (table.columns.empty()) return;  // check_ready() tells
    check_weights(table, sample, model, origins);
    check_balance(table, sample, origins);
    for (const ColumnOptions& column : table.columns) {
      if (column.as == ColumnUse::kWeight || column.as == ColumnUse::kIgnore) continue;
      check_target(column, sample, model, origins);
      if (column.as == ColumnUse::kImage) check_image(column, sample, model, origins);
    }
    for (const TensorSpec& tensor : sample.tensors) {
      if (tensor.optional || is_given(table, sample, tensor)) continue;
      const bool is_target = tensor.role == TensorRole::kTarget;
      origins.fail(
          {"data.columns"},
          "no column goes into " + quote(tensor.name) + ", which " + shown_model(model) + " takes",
          is_target ? "as in NAME = { as = \"label\" }"
                    : "as in NAME = { as = \"number\", into = \"" + tensor.name + "\" }");
    }
  }

  void check_ready(const Options& options, const Origins& origins) const override {
    const auto& table = options.as<TableOptions>();
    if (table.files.empty()) {
      origins.fail({"data.files"}, "files is empty, and kind = \"table\" reads from them",
                   "as in files = [\"data/*.parquet\"]");
    }
    if (table.columns.empty()) {
      origins.fail(
          {"data.columns"}, "columns is empty: kind = \"table\" has to be told what they are",
          "as in [data.columns] with \"*\" = { as = \"number\" } and y = { as = \"label\" }");
    }
  }

  [[nodiscard]] std::int64_t max_held_out_samples(const Options& options) const override {
    const auto& table = options.as<TableOptions>();
    const bool none = table.held_out_fraction == 0 && table.held_out_files.empty() &&
                      table.split_column == kNoColumn;
    return none ? 0 : kUnlimited;
  }

  [[nodiscard]] bool gives(const Options& options, const TensorSpec& optional) const override {
    return std::ranges::any_of(options.as<TableOptions>().columns, [&](const ColumnOptions& each) {
      return (each.into == optional.name && each.as != ColumnUse::kIgnore) ||
             (each.as == ColumnUse::kWeight && optional.name == kSampleWeights);
    });
  }

  [[nodiscard]] std::optional<SampleSpec> describe(const Options& options, const SampleSpec& sample,
                                                   const Origins& origins) const override {
    check_ready(options, origins);
    check(options, origins);
    check_model(options, sample, "", origins);
    SampleSpec described = sample;
    described.tensors = OpenTable(options.as<TableOptions>(), sample, Lesson::kSizes).plan.tensors;
    return described;
  }

  [[nodiscard]] std::unique_ptr<Dataset> open(const Options& options, const SampleSpec& sample,
                                              std::uint64_t seed) const override {
    return std::make_unique<TableDataset>(options.as<TableOptions>(), sample, seed);
  }

  [[nodiscard]] std::unique_ptr<Dataset> open_for_model(const Options& options,
                                                        const SampleSpec& sample,
                                                        std::uint64_t seed,
                                                        const TrainedData& trained) const override {
    if (trained.description.empty()) return open(options, sample, seed);
    return std::make_unique<TableDataset>(options.as<TableOptions>(), sample, seed, &trained);
  }

  // What chose the rows of training is not asked of others, but for a filter that is asked for.
  [[nodiscard]] Options on_files(const Options& options, const std::vector<std::string>& files,
                                 std::span<const std::string> asked) const override {
    for (const std::string& key : asked) {
      if (key != "data.split_column" && key != "data.held_out_files" && key != "data.test_files" &&
          key != "data.held_out_fraction" && key != "data.test_fraction") {
        continue;
      }
      throw UsageError("--set " + key + " chooses a side, and --data means all rows of its files",
                       "--set data.filter=... chooses rows of them");
    }
    auto table = options.as<TableOptions>();
    table.files = files;
    table.held_out_files.clear();
    table.test_files.clear();
    table.test_fraction = 0;
    if (std::ranges::count(asked, "data.filter") == 0) table.filter.clear();
    if (std::ranges::count(asked, "data.filter_any") == 0) table.filter_any.clear();
    table.held_out_fraction = 0;
    table.split_column = kNoColumn;
    table.balance_classes = false;
    return Options(table);
  }

  [[nodiscard]] std::optional<Options> on_test_side(const Options& options) const override {
    auto table = options.as<TableOptions>();
    table.evaluates_test = true;
    return Options(table);
  }

 private:
  static void check_conditions(const std::vector<Condition>& conditions, const std::string& key,
                               const Origins& origins) {
    for (const Condition& condition : conditions) {
      const std::string refusal = troika::refusal_of(condition);
      if (!refusal.empty()) origins.fail({key}, refusal);
    }
  }

  // Why a table of [data.columns] says what cannot be; empty where it can.
  static std::string refusal_of(const ColumnOptions& column) {
    const bool number = column.as == ColumnUse::kNumber;
    const bool category = column.as == ColumnUse::kCategory, text = column.as == ColumnUse::kText;
    const bool weight = column.as == ColumnUse::kWeight;
    const bool image = column.as == ColumnUse::kImage, hash = column.encode == Encode::kHash;
    const std::string as = "as = \"" + std::string(name_of(column.as)) + "\"";
    const bool label = column.as == ColumnUse::kLabel;
    if (column.normalise != Normalise::kNone && !number && !label)
      return "normalise is for numbers and for labels that are numbers, not for " + as;
    std::string refusal = refusal_of_missing(column, as);
    if (refusal.empty()) refusal = refusal_of_times(column, as);
    if (!refusal.empty()) return refusal;
    if (column.missing == Missing::kZero && !number && !category && !text && !weight) {
      return "missing = \"zero\" is for numbers, categories, text and weights, not for " + as;
    }
    const bool may_ignore = label || (column.as == ColumnUse::kTensor && column.into != kAutoInto);
    if (column.missing == Missing::kIgnore && !may_ignore)
      return "missing = \"ignore\" is for labels, not for " + as;
    if (column.as == ColumnUse::kIgnore && column.into != kAutoInto) {
      return "into is not for " + as + ": the column goes nowhere";
    }
    if (weight && column.into != kAutoInto) return "into is not for " + as + ": the loss takes it";
    if (!category && !(text && hash) &&
        (column.encode != Encode::kOneHot || (column.size > 0 && !image))) {
      return "encode and size are for categories, not for " + as +
             (text ? ", which has encode = \"hash\" alone" : "");
    }
    if (!text && (column.length > 0 || column.tokenizer != ColumnOptions().tokenizer)) {
      return "length and tokenizer are for text, not for " + as;
    }
    if (image) return troika::refusal_of(static_cast<const ImageOptions&>(column));
    ImageOptions plain;
    plain.size = column.size;
    if (static_cast<const ImageOptions&>(column) != plain || column.root != kAutoRoot ||
        column.suffix != kNoSuffix) {
      return "color, resize, crop, flip, mean, std, root and suffix are for images, not for " + as;
    }
    if (hash && column.size < (text ? 2 : 1)) {
      return "encode = \"hash\" needs a size: the number of its buckets";
    }
    return "";
  }

  // What says that text is dates.
  static std::string refusal_of_times(const ColumnOptions& column, const std::string& as) {
    const bool has_format = column.format != kNoFormat;
    const bool is_time = has_format || column.type == TextType::kTimestamp;
    if (is_time && (column.as == ColumnUse::kText || column.as == ColumnUse::kImage)) {
      return "format and type = \"timestamp\" are for dates and times, not for " + as;
    }
    if (!has_format) return "";
    if (column.type != TextType::kAuto && column.type != TextType::kTimestamp) {
      return "format is for dates and times, not for type = \"" +
             std::string(name_of(column.type)) + "\"";
    }
    const std::string problem = TimeText::refusal_of(column.format);
    return problem.empty() ? "" : "format = " + quote(column.format) + " " + problem;
  }

  static void check_sides(const TableOptions& table, const Origins& origins) {
    if (table.held_out_fraction + table.test_fraction >= 1) {
      origins.fail({"data.test_fraction"},
                   "held_out_fraction and test_fraction leave no row to train on",
                   "together they are less than 1");
    }
    const bool has_test = table.test_fraction > 0 || !table.test_files.empty();
    if (!has_test || table.split_column == kNoColumn) return;
    origins.fail({"data.split_column"},
                 "split_column names the test side, and so do test_files and test_fraction",
                 "leave one of them out");
  }

  static std::string refusal_of_missing(const ColumnOptions& column, const std::string& as) {
    const bool number = column.as == ColumnUse::kNumber;
    const bool category = column.as == ColumnUse::kCategory;
    const std::string missing = "missing = \"" + std::string(name_of(column.missing)) + "\"";
    switch (column.missing) {
      case Missing::kMean:
      case Missing::kMedian:
      case Missing::kConstant:
        if (!number) return missing + " is for numbers, not for " + as;
        break;
      case Missing::kOwnWord:
        if (!category) return missing + " is for categories, not for " + as;
        break;
      case Missing::kMostFrequent:
        if (category && column.encode == Encode::kHash) {
          return missing + " needs words, and encode = \"hash\" learns none";
        }
        if (!number && !category) return missing + " is for numbers and categories, not for " + as;
        break;
      default:
        break;
    }
    return column.fill != 0 && column.missing != Missing::kConstant
               ? "fill is for missing = \"constant\", not for " + missing
               : "";
  }

  static void check_weights(const TableOptions& table, const SampleSpec& sample,
                            std::string_view model, const Origins& origins) {
    const auto is_weight = [](const ColumnOptions& each) { return each.as == ColumnUse::kWeight; };
    const auto first = std::ranges::find_if(table.columns, is_weight);
    if (first == table.columns.end()) return;
    const auto tensor = std::ranges::find(sample.tensors, kSampleWeights, &TensorSpec::name);
    if (tensor == sample.tensors.end() || !tensor->optional) {
      origins.fail({"data.columns"},
                   "columns." + first->name + ": as = \"weight\" weighs samples in a loss of " +
                       "troika, and " + shown_model(model) + " has its own",
                   "a loss of its own can take the column as a label");
    }
    const auto second = std::find_if(std::next(first), table.columns.end(), is_weight);
    if (second == table.columns.end()) return;
    origins.fail({"data.columns"}, "columns." + second->name + ": " + quote(first->name) +
                                       " already says what a sample weighs");
  }

  static void check_balance(const TableOptions& table, const SampleSpec& sample,
                            const Origins& origins) {
    const auto gap = std::ranges::find(table.columns, Missing::kIgnore, &ColumnOptions::missing);
    if (table.balance_classes && gap != table.columns.end()) {
      origins.fail({"data.balance_classes"},
                   "balance_classes: with missing = \"ignore\" a row of " + quote(gap->name) +
                       " may have no class",
                   "missing = \"skip_row\" leaves such rows out");
    }
    if (!table.balance_classes || label_type(sample.target()) != LabelType::kValue) return;
    origins.fail({"data.balance_classes"},
                 "balance_classes: " + quote(sample.target().name) + " has no classes",
                 "loss = \"cross_entropy\" and \"binary_cross_entropy\" have them");
  }

  static void check_target(const ColumnOptions& column, const SampleSpec& sample,
                           std::string_view model, const Origins& origins) {
    if (column.into == kAutoInto && column.as == ColumnUse::kLabel) {
      return check_label(column, sample.target(), origins);
    }
    if (column.into == kAutoInto) return check_text(column, sample.input(), origins);
    const auto found = std::ranges::find(sample.tensors, column.into, &TensorSpec::name);
    const std::string name = "columns." + column.name + ".into: ";
    if (found == sample.tensors.end()) {
      std::vector<std::string> names;
      for (const TensorSpec& each : sample.tensors) names.push_back(each.name);
      const auto near = nearest(column.into, names);
      origins.fail({"data.columns"},
                   name + "the model has no tensor " + quote(column.into) +
                       (near ? "; did you mean " + quote(*near) + "?" : ""),
                   shown_model(model) + " has " + join(names, ", "));
    }
    const bool is_target = found->role == TensorRole::kTarget;
    const bool fits_target = column.as == ColumnUse::kLabel || column.as == ColumnUse::kTensor;
    if (is_target && fits_target) return check_label(column, *found, origins);
    if (!is_target && column.missing == Missing::kIgnore) {
      origins.fail({"data.columns"}, "columns." + column.name +
                                         ": missing = \"ignore\" is for targets, which " +
                                         quote(column.into) + " is not");
    }
    if (is_target == (column.as == ColumnUse::kLabel)) return check_text(column, *found, origins);
    origins.fail({"data.columns"}, name + quote(column.into) +
                                       (is_target ? " is a target, which takes as = \"label\""
                                                  : " is no target: as = \"label\" is for those"));
  }

  // Classes and answers have no unit.
  static void check_label(const ColumnOptions& column, const TensorSpec& target,
                          const Origins& origins) {
    if (column.normalise == Normalise::kNone || label_type(target) == LabelType::kValue) return;
    origins.fail({"data.columns"},
                 "columns." + column.name + ": normalise is for numbers, and " +
                     quote(target.name) + " takes classes",
                 "loss = \"mean_square\" takes numbers");
  }

  // An image is all of a tensor that has channels, rows and columns.
  static void check_image(const ColumnOptions& column, const SampleSpec& sample,
                          std::string_view model, const Origins& origins) {
    const TensorSpec& tensor =
        column.into == kAutoInto
            ? sample.input()
            : *std::ranges::find(sample.tensors, column.into, &TensorSpec::name);
    const std::string name = "columns." + column.name + ": ";
    if (!isFloatingType(tensor.dtype) || tensor.shape.size() != 3) {
      origins.fail({"data.columns"},
                   name + quote(tensor.name) + " of " + shown_model(model) + " is no image",
                   "kind = \"resnet\" takes images, as do networks of your own");
    }
    const std::string refusal =
        troika::refusal_of(static_cast<const ImageOptions&>(column), tensor.shape);
    if (!refusal.empty()) origins.fail({"data.columns"}, name + refusal);
  }

  // Token ids are whole numbers.
  static void check_text(const ColumnOptions& column, const TensorSpec& tensor,
                         const Origins& origins) {
    if (column.as != ColumnUse::kText || !isFloatingType(tensor.dtype)) return;
    origins.fail(
        {"data.columns"},
        "columns." + column.name + ": as = \"text\" gives token ids, and " + quote(tensor.name) +
            " takes numbers",
        "as in [model] inputs = { " + tensor.name + " = { shape = [64], dtype = \"int64\" } }");
  }

  static bool is_given(const TableOptions& table, const SampleSpec& sample,
                       const TensorSpec& tensor) {
    return std::ranges::any_of(table.columns, [&](const ColumnOptions& column) {
      if (column.as == ColumnUse::kIgnore) return false;
      const std::string into(name_of_tensor(column, sample));
      const bool is_mask = column.as == ColumnUse::kText && tensor.name == into + kMaskSuffix;
      return tensor.name == into || is_mask;
    });
  }
};

}  // namespace

const DataKind& table_kind() {
  static const TableKind kKind;
  return kKind;
}

}  // namespace troika
