#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/storage/first_line_into.h>
#include <troika/storage/object_store.h>

#include <algorithm>

namespace troika {
const arrow_plugin::ArrowPlugin& arrow_library() {
  static const arrow_plugin::ArrowPlugin& loaded = []() -> const arrow_plugin::ArrowPlugin& {
    const auto path = detail::find_plugin(arrow_plugin::kFile);
    if (!path) {
      throw UsageError("kind = \"table\" needs the plug-in " + std::string(arrow_plugin::kFile) +
                           ", which this build was made without",
                       "build again without TROIKA_ARROW=0, or name its folder in " +
                           std::string(detail::kPluginsVariable));
    }
    const auto entry = reinterpret_cast<arrow_plugin::PluginEntry>(
        detail::load_plugin(*path, arrow_plugin::kPluginEntry, detail::PluginScope::kLocal));
    prepare_stores();  // tables are read from these as well
    return *entry();
  }();
  return loaded;
}

void fit_arrow_threads() {
  const int threads = at::get_num_threads();
  // One that waits for a store must not keep others from being read.
  const arrow_plugin::Threads wanted = {threads, std::clamp(threads, 2, 8)};
  std::string reason;
  if (arrow_library().threads() == wanted) return;
  if (arrow_library().set_threads(wanted, first_line_into(reason))) return;
  throw UsageError("Apache Arrow cannot have " + std::to_string(threads) + " threads: " + reason);
}

}  // namespace troika
