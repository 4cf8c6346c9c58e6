// Writes a trained model as a folder of Hugging Face's libraries.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/hub_tensors.h>
#include <troika/data/tokenizer.h>
#include <troika/models/kind.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/adapted_model.h>
#include <troika/train/checkpointer.h>
#include <troika/train/empty_folder.h>
#include <troika/train/hub_folder.h>
#include <troika/train/hub_tokenizer.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_tokenizer.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::int64_t> joined_shape(const TensorSource& model, const JoinedTensor& joined) {
  std::vector<std::int64_t> shape = model.at(joined.parts.front()).shape;
  for (std::size_t i = 1; i < joined.parts.size(); ++i) {
    shape.front() += model.at(joined.parts[i]).shape.front();
  }
  if (joined.transposed) std::swap(shape.front(), shape.back());
  return shape;
}

// The tensors of a model, as the libraries name and lay them out.
class LeavingTensors {
 public:
  LeavingTensors(TensorSource& model, const std::vector<JoinedTensor>& tensors) : model_(model) {
    for (const JoinedTensor& joined : tensors) {
      const DataType type = model.at(joined.parts.front()).type;
      entries_.push_back({.name = joined.name, .type = type, .shape = joined_shape(model, joined)});
      by_name_.emplace(joined.name, &joined);
    }
  }

  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  [[nodiscard]] at::Tensor load(const TensorEntry& entry) const {
    const JoinedTensor& joined = *by_name_.at(entry.name);
    std::vector<at::Tensor> parts;
    for (const std::string& part : joined.parts) parts.push_back(model_.load(model_.at(part)));
    return join_parts(parts, joined.transposed);
  }

 private:
  TensorSource& model_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, const JoinedTensor*> by_name_;
};

// The words of config.json for types of values.
std::string type_word(DataType type) {
  if (type == DataType::kF64) return "float64";
  if (type == DataType::kBF16) return "bfloat16";
  return type == DataType::kF16 ? "float16" : "float32";
}

constexpr std::array kEndIds = {"bos_token_id", "eos_token_id", "pad_token_id"};

// Returns the config.json that the model came with; null where it says nothing of what begins and
// ends a text.
Json kept_config(const std::optional<std::filesystem::path>& origin) {
  if (!origin) return {};
  const std::filesystem::path file = *origin / kSavedConfig;
  const Json config = Json::parse(read_file(file, kMostConfigBytes), nullptr, false);
  if (!config.is_object()) throw DataError(shown_path(file) + " is not JSON");
  const bool says = std::ranges::any_of(
      kEndIds, [&](const char* key) { return config.contains(key) && !config.at(key).is_null(); });
  return says ? config : Json();
}

// The ids that begin and end a text are those that the model came with: several may end it. A model
// that was trained from drawn values has its tokenizer's separator.
std::string config_of(const std::string& form, DataType type,
                      const std::optional<HubTokenizer>& tokenizer, const Json& kept) {
  constexpr int kIndent = 2;
  Json config = Json::parse(form);
  config["torch_dtype"] = type_word(type);
  if (tokenizer) config["bos_token_id"] = config["eos_token_id"] = tokenizer->separator;
  for (const char* const key : kEndIds) {
    if (kept.is_null()) break;
    config.erase(key);
    if (kept.contains(key)) config[key] = kept.at(key);
  }
  return config.dump(kIndent) + "\n";
}

}  // namespace

Recipe recipe_of_export(const std::filesystem::path& run, std::optional<std::int64_t> step) {
  if (!is_remote(run.native())) return recipe_of_trained(run);
  const CheckpointFolder folder = checkpoints_of(run);
  const std::vector<std::int64_t> steps = folder.steps();
  if (steps.empty()) throw DataError("no checkpoint in " + folder.shown());
  const Manifest manifest = folder.read(step.value_or(steps.front()));
  return parse_recipe(manifest.recipe, folder.shown()).recipe;
}

std::vector<std::string> export_to_hub(const HubExport& options) {
  const Recipe recipe = recipe_of_export(options.run, options.step);
  const HubForm form = recipe.model.kind().hub_form(recipe.model.options());
  const auto model = open_whole_tensors(recipe, options.run, options.step);
  const LeavingTensors tensors(*model, form.tensors);
  const auto kept = find_saved_tokenizer(options.run, recipe);
  const std::optional<HubTokenizer> tokenizer = kept ? std::nullopt : hub_tokenizer_of(recipe);
  make_empty_folder(options.out);
  std::vector<std::string> files =
      write_hub_tensors(options.out, tensors.entries(), options.max_file_bytes,
                        [&](const TensorEntry& entry) { return tensors.load(entry); });
  if (tokenizer) {
    for (const auto& [name, content] : tokenizer->files) {
      write_file_atomically(options.out / name, content);
      files.push_back(name);
    }
  }
  if (kept) {
    for (std::string& name : copy_tokenizer(*kept, options.out)) files.push_back(std::move(name));
  }
  const auto origin = find_hub_origin(options.run, recipe);
  const bool generates = origin && std::filesystem::exists(*origin / kGenerationConfig);
  if (generates && std::ranges::count(files, kGenerationConfig) == 0) {
    write_file_atomically(options.out / kGenerationConfig,
                          read_file(*origin / kGenerationConfig, kMostConfigBytes));
    files.emplace_back(kGenerationConfig);
  }
  write_file_atomically(
      options.out / "config.json",
      config_of(form.config, tensors.entries().front().type, tokenizer, kept_config(origin)));
  files.emplace_back("config.json");
  return files;
}

}  // namespace troika
