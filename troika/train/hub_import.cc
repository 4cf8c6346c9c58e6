// Reads a model from a folder of Hugging Face's libraries.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/tensor_source.h>
#include <troika/checkpoint/tensors.h>
#include <troika/data/tokenizer.h>
#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/param/shape_text.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/empty_folder.h>
#include <troika/train/hub_folder.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>
#include <troika/train/saved_tokenizer.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSentencePiece = "tokenizer.model";

// What a folder without config.json has instead, by the files of other formats.
struct OtherFolder {
  const char* file;
  const char* is;
  const char* hint;
};
constexpr std::array<OtherFolder, 3> kOtherFolders = {
    {{"adapter_config.json", "an adapter (LoRA) and no model",
      "name it as [adapter] from, beside its model; or join both first, in Python: "
      "PeftModel.from_pretrained(model, FOLDER).merge_and_unload().save_pretrained(OUT)"},
     {"model_index.json", "a pipeline of diffusers and no language model",
      "any network of Python's trains with [model] kind = \"exported\": "
      "docs/how-to/from-python.md"},
     {"recipe.toml", "a run of troika already", "start from it with [model] from"}}};

void refuse_other_folder(const fs::path& folder) {
  for (const OtherFolder& each : kOtherFolders) {
    if (!fs::exists(folder / each.file)) continue;
    throw DataError(
        shown_path(folder) + " has " + each.is + ": there is " + each.file + ", and no config.json",
        each.hint);
  }
}

std::string model_type_of(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  const bool says = json.is_object() && json.contains("model_type");
  return says && json.at("model_type").is_string() ? json.at("model_type").get<std::string>() : "";
}

ModelOptions model_of(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) refuse_other_folder(folder);
  const std::string json = read_file(file, kMostConfigBytes);
  for (const ModelKind* kind : ModelKind::all()) {
    ModelOptions model{Chosen<ModelKind>(*kind)};
    if (kind->read_hub_config(model.options(), json, shown_path(file))) return model;
  }
  throw DataError(shown_path(file) + ": model_type " + quote(model_type_of(json)) +
                      " has no counterpart: llama, mistral, qwen2, qwen3 and gpt2 have one",
                  "any network of Python's trains with [model] kind = \"exported\": "
                  "docs/how-to/from-python.md");
}

// The tensor of a file, and which part of it is one of ours.
struct Place {
  const JoinedTensor* joined;
  std::size_t part;
  const TensorEntry* entry;
};

// Files of a model without its head leave out the first word: "h.0.ln_1.weight".
const TensorEntry* find_tensor(const TensorSource& files, const std::string& name) {
  const TensorEntry* const entry = files.find(name);
  return entry != nullptr ? entry : files.find(name.substr(name.find('.') + 1));
}

// The tensors of the libraries' files by our names.
class ArrivingTensors {
 public:
  ArrivingTensors(TensorSource& files, const HubForm& form) : files_(files) {
    std::set<std::string_view> used;
    for (const JoinedTensor& joined : form.tensors) {
      const TensorEntry& entry = find(joined.name);
      used.insert(entry.name);
      for (std::size_t i = 0; i < joined.parts.size(); ++i) {
        places_.emplace(joined.parts[i], Place{&joined, i, &entry});
      }
    }
    refuse_surplus(form, used);
  }

  // The values of a parameter. Throws DataError where they have another shape or type.
  [[nodiscard]] at::Tensor load(const ParameterSpec& wanted, at::ScalarType type) const {
    const Place& place = places_.at(wanted.name);
    const std::size_t count = place.joined->parts.size();
    const at::Tensor whole = files_.load(*place.entry);
    const bool fits = is_splittable(place.entry->shape, place.joined->transposed, count);
    const at::Tensor part =
        fits ? part_of(whole, place.joined->transposed, place.part, count) : at::Tensor();
    if (fits && part.sizes() == at::IntArrayRef(wanted.shape) && part.is_floating_point()) {
      return part.to(type).contiguous();
    }
    throw DataError(shown_path(files_.path()) + ": tensor " + quote(place.entry->name) +
                        " is not what config.json says: " + in_words(*place.entry) + ", not " +
                        shape_text(joined_shape(wanted.shape, *place.joined)),
                    "the files are of different models, or damaged");
  }

  // fp64 where that is what the files have.
  [[nodiscard]] DataType type() const {
    const bool has_fp64 = std::ranges::any_of(
        places_, [](const auto& place) { return place.second.entry->type == DataType::kF64; });
    return has_fp64 ? DataType::kF64 : DataType::kF32;
  }

 private:
  // "[300, 24] of BF16".
  [[nodiscard]] static std::string in_words(const TensorEntry& entry) {
    return shape_text(entry.shape) + " of " + std::string(name_of(entry.type));
  }
  // Returns the shape of a foreign tensor that is made of parts of one shape.
  [[nodiscard]] static std::vector<std::int64_t> joined_shape(std::vector<std::int64_t> part,
                                                              const JoinedTensor& joined) {
    part.front() *= static_cast<std::int64_t>(joined.parts.size());
    if (joined.transposed) std::swap(part.front(), part.back());
    return part;
  }
  [[nodiscard]] const TensorEntry& find(const std::string& name) const {
    const TensorEntry* const entry = find_tensor(files_, name);
    return entry != nullptr ? *entry : files_.at(name);
  }

  void refuse_surplus(const HubForm& form, const std::set<std::string_view>& used) const {
    for (const TensorEntry& entry : files_.entries()) {
      const bool is_ignored = std::ranges::any_of(
          form.ignored, [&](const std::string& end) { return entry.name.ends_with(end); });
      if (used.contains(entry.name) || is_ignored) continue;
      throw DataError(shown_path(files_.path()) + ": tensor " + quote(entry.name) +
                          " has no counterpart in the model that config.json describes",
                      "the files are of different models");
    }
  }

  TensorSource& files_;
  std::map<std::string, Place> places_;
};

// The parameters that have values of their own.
std::vector<ParameterSpec> parameters_of(const ModelOptions& model) {
  const UnitStage stage(build_model(model, 0).units, 0);
  std::vector<ParameterSpec> specs;
  for (const ParameterSpec& spec : stage.specs()) {
    if (spec.tied_to.empty()) specs.push_back(spec);
  }
  return specs;
}

void write_model(const fs::path& file, const ArrivingTensors& tensors,
                 const std::vector<ParameterSpec>& specs) {
  std::map<std::string, const ParameterSpec*> by_name;
  std::vector<TensorEntry> entries;
  for (const ParameterSpec& spec : specs) {
    entries.push_back({.name = spec.name, .type = tensors.type(), .shape = spec.shape});
    by_name.emplace(spec.name, &spec);
  }
  SafetensorsWriter writer(file, std::move(entries), {{"format", "pt"}});
  for (const TensorEntry& entry : writer.entries()) {
    const at::Tensor values = tensors.load(*by_name.at(entry.name), scalar_type_of(tensors.type()));
    writer.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.commit();
}

// Returns whether data can be made with the tokenizer.json of a folder.
bool has_usable_json(const fs::path& folder) {
  if (!fs::exists(folder / kTokenizerJson)) return false;
  try {
    (void)open_tokenizer((folder / kTokenizerJson).string());
    return true;
  } catch (const Error&) {  // of a kind that troika does not have, or without the plug-in
    return false;
  }
}

// Brings the tokenizer along. What a recipe says of data: token ids alone, unless the folder has
// what turns text into them.
struct ArrivingTokenizer {
  std::vector<std::string> data = {"data.kind=tokens"};
  std::string kept;  // the file that is of no use but for export
};

ArrivingTokenizer take_tokenizer(const fs::path& folder, const fs::path& out) {
  ArrivingTokenizer tokenizer;
  // Where a run has it as well, so that commands find it wherever they are started.
  const auto use = [&](const char* name, const std::vector<std::string>& files) {
    tokenizer.data = {"data.kind=text", "data.tokenizer=" + (out / name).string()};
    make_folders(out / kRunTokenizer);
    for (const std::string& each : files) {
      write_file_atomically(out / kRunTokenizer / each, read_file(out / each, kMaxTokenizerBytes));
    }
  };
  if (fs::exists(folder / kSentencePiece)) {
    write_file_atomically(out / kSentencePiece,
                          read_file(folder / kSentencePiece, kMaxTokenizerBytes));
    use(kSentencePiece, {kSentencePiece});
    return tokenizer;
  }
  const std::vector<std::string> files = copy_tokenizer(folder, out);
  if (has_usable_json(folder)) {
    use(kTokenizerJson, files);
  } else if (!files.empty()) {
    tokenizer.kept = files.front();
  }
  return tokenizer;
}

// Unties what config.json calls tied where the files have both with values of their own: models
// that were made of others have such heads, and the libraries use them since release 5. Returns
// what was untied, in words.
std::string untie(Recipe& recipe, TensorSource& files) {
  const HubForm form = recipe.model.kind().hub_form(recipe.model.options());
  for (const TiedTensor& tied : form.tied) {
    const TensorEntry* const own = files.find(tied.name);
    const TensorEntry* const other = find_tensor(files, tied.same_as);
    if (own == nullptr || other == nullptr) continue;
    const bool is_alike = own->type == other->type && own->shape == other->shape;
    if (is_alike && at::equal(files.load(*own), files.load(*other))) continue;
    const std::vector<std::string> apart = {"data.kind=tokens", "model." + tied.key + "=false"};
    recipe = parse_recipe(to_toml(recipe), "recipe of the import", apart).recipe;
    return tied.name + " has values of its own, though config.json calls it tied: model." +
           tied.key + " = false";
  }
  return "";
}

// Throws DataError where config.json has more layers than the files have tensors, before each of
// them takes memory.
void check_layers(const ModelOptions& model, const TensorSource& files) {
  const std::int64_t units = traits_of(model).units, tensors = std::ssize(files.entries());
  if (units <= tensors) return;
  throw DataError(shown_path(files.path()) + " has " + plural(tensors, "tensor") +
                      ", too few for the layers that config.json has",
                  "the files are of different models, or damaged");
}

// Beside the model, for export_to_hub(): ids that begin and end a text, and how it is generated.
void keep_configs(const fs::path& folder, const fs::path& out) {
  write_file_atomically(out / kSavedConfig, read_file(folder / "config.json", kMostConfigBytes));
  if (!fs::exists(folder / kGenerationConfig)) return;
  write_file_atomically(out / kGenerationConfig,
                        read_file(folder / kGenerationConfig, kMostConfigBytes));
}

}  // namespace

HubImport import_from_hub(const fs::path& folder, const fs::path& out) {
  Recipe recipe;
  // Not the folder itself: a run that starts clears its own.
  recipe.name = fs::absolute(out / "").parent_path().filename().string() + "-trained";
  recipe.model = model_of(folder);
  const auto files = open_hub_tensors(folder);
  HubImport result;
  check_layers(recipe.model, *files);
  result.untied = untie(recipe, *files);
  const HubForm form = recipe.model.kind().hub_form(recipe.model.options());
  const ArrivingTensors tensors(*files, form);
  const std::vector<ParameterSpec> specs = parameters_of(recipe.model);
  make_empty_folder(out);
  write_model(model_path(out), tensors, specs);
  // As it was given, and so is the tokenizer's: they hold where all of it has been moved together.
  recipe.model.from.path = model_path(out).string();
  const ArrivingTokenizer tokenizer = take_tokenizer(folder, out);
  keep_configs(folder, out);
  result.saved_tokenizer = tokenizer.kept;
  const fs::path file = recipe_path(out);
  // Read again, so that what the keys demand of one another is checked.
  recipe = parse_recipe(to_toml(recipe), file.string(), tokenizer.data).recipe;
  write_file_atomically(file, to_toml(recipe));
  double count = 0;
  for (const ParameterSpec& spec : specs) count += static_cast<double>(spec.global_count());
  result.model = std::string(recipe.model.name()) + ", " + format_count(count) + " parameters";
  return result;
}

}  // namespace troika
