#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/table_description.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHint = "`troika train` has written it beside the model; train again";

constexpr auto kTypeNames = std::to_array<std::string_view>(
    {"integer", "number", "boolean", "text", "numbers", "nothing", "other"});

std::string_view name_of_type(ValueType type) {
  return kTypeNames.at(static_cast<std::size_t>(type));
}

template <class Name>
Name named(const Json& json, std::span<const std::string_view> names) {
  const auto text = json.get<std::string>();
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) throw DataError("data.json of the run has " + quote(text), kHint);
  return static_cast<Name>(found - names.begin());
}

// Words may be any bytes, which JSON cannot hold. Two digits a byte can.
std::string digits_of(std::string_view word) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string digits;
  for (const char each : word) {
    const auto byte = static_cast<unsigned char>(each);
    digits += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return digits;
}

std::string word_of(std::string_view digits) {
  std::string word;
  for (; digits.size() >= 2; digits.remove_prefix(2)) {
    unsigned byte = 0;
    std::from_chars(digits.data(), digits.data() + 2, byte, 16);
    word += static_cast<char>(byte);
  }
  return word;
}

void put_words(Json& json, const std::vector<std::string>& words) {
  if (words.empty()) return;
  const bool plain =
      std::ranges::all_of(words, [](const auto& each) { return count_not_utf8(each) == 0; });
  if (plain) {
    json["words"] = words;
  } else {
    for (const std::string& each : words) json["words_base16"].push_back(digits_of(each));
  }
}

std::vector<std::string> words_of(const Json& json) {
  std::vector<std::string> words = json.value("words", std::vector<std::string>());
  for (const Json& each : json.value("words_base16", Json::array())) {
    words.push_back(word_of(each.get<std::string>()));
  }
  return words;
}

// What decodes an image and has learned from images; what is drawn is of no use later.
Json json_of_images(const ColumnOptions& options) {
  return {{"color", name_of(options.color)},
          {"resize", name_of(options.resize)},
          {"resize_to", options.resize_to},
          {"mean", options.mean},
          {"std", options.std},
          {"root", options.root},
          {"suffix", options.suffix}};
}

void read_images(const Json& json, ColumnOptions& options) {
  options.color = named<ImageColor>(json.at("color"), names_of<ImageColor>());
  options.resize = named<ImageResize>(json.at("resize"), names_of<ImageResize>());
  options.resize_to = json.at("resize_to").get<std::int64_t>();
  options.mean = json.at("mean").get<std::vector<double>>();
  options.std = json.at("std").get<std::vector<double>>();
  options.root = json.at("root").get<std::string>();
  options.suffix = json.value("suffix", kNoSuffix);
}

Json json_of(const PlannedColumn& column, const TensorSpec& tensor) {
  const ColumnOptions& options = column.options;
  Json json = {{"name", column.column.name},
               {"type", column.column.type_name},
               {"values", name_of_type(column.column.type)},
               {"as", name_of(options.as)},
               {"into", tensor.name},
               {"offset", column.offset},
               {"width", column.width},
               {"missing", name_of(options.missing)}};
  if (options.normalise != Normalise::kNone) {
    json["normalise"] = name_of(options.normalise);
    json["shift"] = column.shift;
    json["scale"] = column.scale;
  }
  if (column.has_replacement()) {
    json[options.missing == Missing::kMean ? "mean" : "replacement"] = column.mean;
  }
  if (!column.usual_word.empty()) put_words(json["usual"], {column.usual_word});
  if (options.as == ColumnUse::kCategory) json["encode"] = name_of(options.encode);
  if (options.size > 0) json["size"] = options.size;
  if (options.as == ColumnUse::kImage) json["image"] = json_of_images(options);
  if (options.as == ColumnUse::kText) {
    json["encode"] = name_of(options.encode);
    json["length"] = column.width;
    json["tokenizer"] = options.tokenizer;
    json["tokenizer_hash"] = column.tokens->fingerprint();
    json["pads_with"] = column.tokens->filler();
  }
  put_words(json, column.words);
  if (column.classes > 0) json["classes"] = column.classes;
  return json;
}

// The model's ids mean nothing to another tokenizer.
void open_described_text(PlannedColumn& column, const Json& json,
                         const std::vector<TensorSpec>& tensors) {
  column.options.length = json.at("length").get<std::int64_t>();
  column.options.tokenizer = json.at("tokenizer").get<std::string>();
  const bool is_hash = column.options.encode == Encode::kHash;
  if (column.options.length < 0 || (is_hash && column.options.size < 2)) {
    throw DataError("data.json of the run has no such text: " + quote(column.options.name), kHint);
  }
  open_text(column, tensors);
  if (column.tokens->fingerprint() == json.at("tokenizer_hash").get<std::string>()) return;
  throw DataError("the tokenizer " + quote(column.options.tokenizer) + " of the column " +
                      quote(column.options.name) + " is not that of the training",
                  "put the file back that the model was trained with");
}

PlannedColumn column_of(const Json& json, const std::vector<TensorSpec>& tensors) {
  PlannedColumn column;
  ColumnOptions& options = column.options;
  options.name = column.column.name = json.at("name").get<std::string>();
  column.column.type_name = json.at("type").get<std::string>();
  column.column.type = named<ValueType>(json.at("values"), kTypeNames);
  options.as = named<ColumnUse>(json.at("as"), names_of<ColumnUse>());
  options.into = json.at("into").get<std::string>();
  options.missing = named<Missing>(json.at("missing"), names_of<Missing>());
  options.normalise =
      named<Normalise>(json.value("normalise", Json("none")), names_of<Normalise>());
  options.encode = named<Encode>(json.value("encode", Json("one_hot")), names_of<Encode>());
  options.size = json.value("size", std::int64_t{0});
  column.shift = json.value("shift", 0.0);
  column.scale = json.value("scale", 1.0);
  column.mean = json.value("mean", json.value("replacement", 0.0));
  for (const std::string& word : words_of(json.value("usual", Json::object()))) {
    column.usual_word = word;
  }
  column.words = words_of(json);
  column.classes = json.value("classes", std::int64_t{0});
  if (options.as == ColumnUse::kImage) read_images(json.at("image"), options);
  if (options.as == ColumnUse::kTensor) column.column.width = json.at("width").get<std::int64_t>();
  const auto tensor = std::ranges::find(tensors, options.into, &TensorSpec::name);
  if (tensor == tensors.end() || column.column.width < 0 || options.size < 0) {
    throw DataError("data.json of the run does not go with its model: the column " +
                        quote(options.name) + " goes into " + quote(options.into),
                    kHint);
  }
  column.tensor = static_cast<std::size_t>(tensor - tensors.begin());
  column.label = label_type(*tensor);
  if (options.as == ColumnUse::kText) open_described_text(column, json, tensors);
  return column;
}

// Whole numbers are words as text spells them, so that a file of text may have either.
bool reads_as(ValueType found, ValueType learned) {
  const auto is_spelled = [](ValueType type) {
    return type == ValueType::kInteger || type == ValueType::kNumber || type == ValueType::kText;
  };
  return found == learned || (is_spelled(found) && is_spelled(learned));
}

// Whether the values of a file mean what those of training did.
bool agrees(const PlannedColumn& column, ValueType found) {
  const ValueType learned = column.column.type;
  if (found == ValueType::kNothing || learned == ValueType::kNothing) return column.fits(found);
  if (!column.fits(found)) return false;
  const bool by_word = column.has_words() || column.options.as == ColumnUse::kCategory ||
                       column.options.as == ColumnUse::kText;
  if (by_word) return reads_as(found, learned);
  return found != ValueType::kText || column.options.as == ColumnUse::kImage;
}

// Says how numbers of a file become those of training; nothing where their meanings differ.
std::optional<UnitChange> change_of(const PlannedColumn& column, const TableColumn& found) {
  if (!agrees(column, found.type)) return std::nullopt;
  const bool unknown =
      found.type == ValueType::kNothing || column.column.type == ValueType::kNothing;
  if (unknown || (!is_temporal(found) && !is_temporal(column.column))) return UnitChange();
  return unit_change(found.type_name, column.column.type_name);
}

}  // namespace

std::string TablePlan::describe() const {
  Json json;
  for (const TensorSpec& each : tensors) {
    json["tensors"].push_back({{"name", each.name}, {"shape", each.shape}});
  }
  for (const PlannedColumn& each : columns) {
    json["columns"].push_back(json_of(each, tensors[each.tensor]));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";  // names may be any bytes
}

std::vector<std::string> text_columns_of(std::string_view json) {
  std::vector<std::string> names;
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object()) return names;  // read_description() tells
  for (const Json& each : parsed.value("columns", Json::array())) {
    if (each.value("values", "") == name_of_type(ValueType::kText)) {
      names.push_back(each.value("name", ""));
    }
  }
  return names;
}

std::vector<std::string> time_columns_of(std::string_view json) {
  std::vector<std::string> names;
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object()) return names;  // read_description() tells
  for (const Json& each : parsed.value("columns", Json::array())) {
    const std::string name = each.value("name", "");
    TableColumn column;
    column.type_name = each.value("type", "");
    if (each.value("values", "") != name_of_type(ValueType::kInteger)) continue;
    column.type = ValueType::kInteger;
    if (is_temporal(column)) names.push_back(name);
    if (const auto whole = whole_of_part(name)) names.emplace_back(*whole);
  }
  return names;
}

TablePlan read_description(std::string_view json, const SampleSpec& sample) {
  TablePlan plan;
  plan.tensors = sample.tensors;
  try {
    const Json parsed = Json::parse(json);
    for (const Json& each : parsed.at("columns")) {
      plan.columns.push_back(column_of(each, plan.tensors));
    }
  } catch (const nlohmann::json::exception&) {
    throw DataError("data.json of the run is damaged, or of another version of troika", kHint);
  }
  lay_out_columns(plan);
  return plan;
}

void find_described_columns(TablePlan& plan, const TableFiles& files) {
  for (PlannedColumn& each : plan.columns) {
    const TableColumn& found = files.column(each.column.name);
    const std::optional<UnitChange> change = change_of(each, found);
    if (!change) {
      throw DataError("the column " + quote(found.name) + " of " +
                          shown_path(files.files().front().path) + " is " + found.type_name +
                          "; the model has learned it as " + each.column.type_name,
                      "write it as in the table that the model was trained on");
    }
    each.unit = *change;
    files.check_everywhere(found.name);
  }
}

}  // namespace troika
