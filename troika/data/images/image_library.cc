#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/data/images/image_library.h>

namespace troika {

const image_plugin::ImagePlugin& image_library() {
  static const image_plugin::ImagePlugin& loaded = []() -> const image_plugin::ImagePlugin& {
    const auto path = detail::find_plugin(image_plugin::kFile);
    if (!path) {
      throw UsageError(
          "images need the plug-in " + std::string(image_plugin::kFile) + ", which is not there",
          "build all of troika, or name the plug-in's folder in " +
              std::string(detail::kPluginsVariable));
    }
    const auto entry = reinterpret_cast<image_plugin::PluginEntry>(
        detail::load_plugin(*path, image_plugin::kPluginEntry, detail::PluginScope::kLocal));
    return *entry();
  }();
  return loaded;
}

}  // namespace troika
