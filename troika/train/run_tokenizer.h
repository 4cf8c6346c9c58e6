// What a run keeps of its data in its own folder. With the tokenizer there, a trained model makes
// text also where the file that the recipe names has moved, has changed, or lies elsewhere.
#pragma once

#include <troika/recipe/recipe.h>

#include <filesystem>
#include <span>
#include <string>

namespace troika {

// The folder of a run with the tokenizer's files.
inline constexpr const char* kRunTokenizer = "tokenizer";

// Writes what a trained model needs of the run's data: their description (Dataset::description())
// to data_path(), and the files of the tokenizer that they name to <run>/tokenizer; nothing where
// they say nothing, and for bytes. Throws DataError where a file cannot be read, and StorageError.
void write_data_description(const Recipe& recipe, const std::filesystem::path& run,
                            const std::string& description);

// Reads the recipe of a trained run as recipe_of_run() does, with the tokenizer of its folder,
// where that has one, unless `overrides` name another or other data.
[[nodiscard]] Recipe recipe_of_trained(const std::filesystem::path& run,
                                       std::span<const std::string> overrides = {});

}  // namespace troika
