#include <troika/recipe/recipe_file.h>
#include <troika/recipe/timeouts.h>
#include <troika/storage/object_store.h>

namespace troika {
namespace {

// Any key may name a place behind a URL: data, initial values, checkpoints and their copies.
Seconds store_patience(const Recipe& recipe) {
  return Seconds(is_remote(to_toml(recipe)) ? recipe.storage.retry_seconds : 0);
}

}  // namespace

Seconds start_timeout(const Recipe& recipe) {
  return Seconds(recipe.comm.rendezvous_timeout_seconds) + store_patience(recipe);
}

void apply_store_options(const Recipe& recipe) {
  set_store_patience(Seconds(recipe.storage.retry_seconds));
  const DataCacheOptions& cache = recipe.data_cache;
  if (cache.folder == kNoCache) return;
  set_store_cache(cache.folder, static_cast<std::uint64_t>(cache.bytes));
}

Seconds step_timeout(const Recipe& recipe) {
  return Seconds(recipe.comm.timeout_seconds) + store_patience(recipe);
}

}  // namespace troika
