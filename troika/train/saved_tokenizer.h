// The tokenizer of a model that came in from Hugging Face's libraries. Its files lie beside the
// model as they came, and leave with what is trained from it, also where troika has no use for it.
#pragma once

#include <troika/recipe/recipe.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// Copies the files of a tokenizer between two folders, unchanged. Returns their names, the
// tokenizer first; none where `from` has no tokenizer.json and no vocab.json. Throws StorageError.
std::vector<std::string> copy_tokenizer(const std::filesystem::path& from,
                                        const std::filesystem::path& to);

// Reads the files of a tokenizer that lie in a folder, by their names. Throws DataError.
[[nodiscard]] std::map<std::string, std::string> tokenizer_files_in(
    const std::filesystem::path& folder);

// The config.json of an imported model, as it came, under a name that makes no model of the folder.
inline constexpr const char* kSavedConfig = "hub_config.json";
inline constexpr const char* kGenerationConfig = "generation_config.json";
inline constexpr std::uint64_t kMostConfigBytes = std::uint64_t{1} << 24;  // that are read

// Returns the folder that a model came to from Hugging Face's libraries: the run's, or one that it
// started from, from run to run as [model] from says; nullopt where it did not come from there, or
// where the recipe's data name another tokenizer than came along. Throws DataError where that one
// cannot be read.
[[nodiscard]] std::optional<std::filesystem::path> find_hub_origin(const std::filesystem::path& run,
                                                                   const Recipe& recipe);

// Returns the folder with the tokenizer that was kept for a run's model: the run's, or that of the
// model that it started from, from run to run as [model] from says. Returns nullopt where there is
// none, or where the recipe's data name the tokenizer that made their tokens.
[[nodiscard]] std::optional<std::filesystem::path> find_saved_tokenizer(
    const std::filesystem::path& run, const Recipe& recipe);

}  // namespace troika
