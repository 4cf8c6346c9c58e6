// Any bytes are a recipe or a UsageError of one line; a recipe that was read is written and read
// again as the same. Bytes after a NUL are an override.
#include <fuzz/fuzz.h>
#include <troika/base/error.h>
#include <troika/recipe/recipe_file.h>

#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  const std::size_t end = text.find('\0');
  if (end != std::string_view::npos) {
    overrides.emplace_back(text.substr(end + 1));
    text = text.substr(0, end);
  }
  troika::LoadedRecipe loaded;
  try {
    loaded = troika::parse_recipe(text, "fuzz.toml", overrides);
  } catch (const troika::UsageError& error) {
    troika::require_one_line(error.what());
    return 0;
  }
  const std::string written = troika::to_toml(loaded.recipe);
  troika::require(troika::parse_recipe(written, "written.toml").recipe == loaded.recipe,
                  "a recipe reads back as it was written");
  return 0;
}
