#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/storage/block_cache.h>
#include <troika/storage/object_store.h>
#include <troika/storage/outage.h>
#include <troika/storage/store_library.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace troika {
namespace {

// How this process deals with its stores. The plug-in is loaded only when something needs it.
class StoreSettings {
 public:
  void set_patience(Seconds seconds) {
    const std::scoped_lock lock(mutex_);
    patience_ = seconds;
    if (plugin_ != nullptr) apply();
  }
  [[nodiscard]] Seconds patience() {
    const std::scoped_lock lock(mutex_);
    return patience_;
  }
  void set_cache(const std::filesystem::path& folder, std::uint64_t most_bytes) {
    const std::scoped_lock lock(mutex_);
    if (cache_) return;
    cache_.emplace(folder, most_bytes);
    if (plugin_ != nullptr) apply();
  }
  void give_to(const store_plugin::StorePlugin& plugin) {
    const std::scoped_lock lock(mutex_);
    plugin_ = &plugin;
    apply();
  }

 private:
  void apply() const {
    const double seconds = patience_.count();
    plugin_->set_patience(seconds, [seconds](std::string_view reason) {
      log_warning("an object store does not answer (" + std::string(reason) +
                  "): asking again for " + format_duration(seconds));
    });
    if (cache_) plugin_->set_cache(*cache_);
  }

  std::mutex mutex_;
  Seconds patience_{kFewSeconds};
  std::optional<BlockCache> cache_;
  const store_plugin::StorePlugin* plugin_ = nullptr;
};

StoreSettings& settings() {
  static StoreSettings* const instance = new StoreSettings();  // outlives what ends at exit
  return *instance;
}

}  // namespace

const store_plugin::StorePlugin& store_library() {
  static const store_plugin::StorePlugin& loaded = []() -> const store_plugin::StorePlugin& {
    const auto path = detail::find_plugin(store_plugin::kFile);
    if (!path) {
      throw UsageError("object stores need the plug-in " + std::string(store_plugin::kFile) +
                           ", which this build was made without",
                       "build again without TROIKA_ARROW=0, or name its folder in " +
                           std::string(detail::kPluginsVariable));
    }
    const auto entry = reinterpret_cast<store_plugin::PluginEntry>(
        detail::load_plugin(*path, store_plugin::kPluginEntry, detail::PluginScope::kLocal));
    const store_plugin::StorePlugin& plugin = *entry();
    settings().give_to(plugin);
    return plugin;
  }();
  return loaded;
}

void set_store_patience(Seconds seconds) {
  settings().set_patience(seconds);
}

Seconds store_patience() {
  return settings().patience();
}

void set_store_cache(const std::filesystem::path& folder, std::uint64_t most_bytes) {
  settings().set_cache(folder, most_bytes);
}

void prepare_stores() {
  static_cast<void>(store_library());
}

}  // namespace troika
