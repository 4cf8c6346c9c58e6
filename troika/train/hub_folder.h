// Models that leave for Hugging Face's libraries, and models that come in from there. A folder of
// theirs has config.json, safetensors files and, of language models, a tokenizer.
#pragma once

#include <troika/recipe/recipe.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika {

inline constexpr std::uint64_t kHubFileBytes = std::uint64_t{5} << 30;

struct HubExport {
  std::filesystem::path run;
  std::filesystem::path out;         // a new or an empty folder
  std::optional<std::int64_t> step;  // of a checkpoint; absent: as open_run_tensors() takes it
  std::uint64_t max_file_bytes = kHubFileBytes;
};

// Returns the recipe of a run: of a URL, that of its checkpoint of a step, or of the newest. Throws
// DataError.
[[nodiscard]] Recipe recipe_of_export(const std::filesystem::path& run,
                                      std::optional<std::int64_t> step);

// Writes the model of a run, merged where it has adapters. config.json is written last: without it,
// the folder is no model. Returns the names of the files. Throws UsageError naming the choice of
// the recipe that has no counterpart, or `out` where something lies in it, DataError and
// StorageError.
std::vector<std::string> export_to_hub(const HubExport& options);

struct HubImport {
  std::string model;            // in words
  std::string saved_tokenizer;  // the tokenizer's file that is kept for export; empty: none
  std::string untied;           // which tensor is no copy of another, in words; empty: none
};

// Writes `out` as a run's folder: model.safetensors with our names, in fp32 (fp64 stays), and
// recipe.toml, with [model] as config.json has it and the folder's tokenizer.model or
// tokenizer.json, where it has one that troika can use, as data.tokenizer. The files of another
// tokenizer, config.json (kSavedConfig) and generation_config.json are copied as they are, for
// export_to_hub(). A head that config.json calls tied, and that has values of its own, makes the
// model untied. Throws DataError naming the file, field or
// tensor that is missing or has no counterpart, UsageError and StorageError.
HubImport import_from_hub(const std::filesystem::path& folder, const std::filesystem::path& out);

}  // namespace troika
