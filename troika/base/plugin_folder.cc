#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/own_program.h>
#include <troika/base/plugin_folder.h>

#include <dlfcn.h>

#include <cstdlib>
#include <system_error>

namespace troika::detail {
namespace {

namespace fs = std::filesystem;

// The folder of the program or of the library that holds this code.
std::vector<fs::path> own_folders() {
  std::vector<fs::path> folders;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_plugin), &info) != 0 && info.dli_fname) {
    std::error_code error;
    const fs::path real = fs::canonical(info.dli_fname, error);
    if (!error) folders.push_back(real.parent_path());
  }
  folders.push_back(own_program().parent_path());
  return folders;
}

int visibility_of(PluginScope scope) {
  if (scope == PluginScope::kShared) return RTLD_GLOBAL;
  const bool own = scope == PluginScope::kOwn && !sanitizer_comes_first();
  return own ? RTLD_LOCAL | RTLD_DEEPBIND : RTLD_LOCAL;
}

}  // namespace

std::optional<fs::path> find_plugin(std::string_view file_name) {
  std::vector<fs::path> folders;
  const char* named = std::getenv(kPluginsVariable);
  if (named != nullptr && *named != '\0') folders.emplace_back(named);
  for (const fs::path& own : own_folders()) {
    for (const char* place : {".", TROIKA_INSTALLED_PLUGINS, "troika", "../lib"}) {
      folders.push_back(own / place);
    }
  }
  folders.emplace_back(TROIKA_BUILD_FOLDER);
  for (const fs::path& folder : folders) {
    std::error_code error;
    const fs::path file = folder / file_name;
    if (fs::is_regular_file(file, error)) return file.lexically_normal();
  }
  return std::nullopt;
}

bool sanitizer_comes_first() {
  return dlsym(RTLD_DEFAULT, "__asan_init") != nullptr ||
         dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr;
}

void* load_plugin(const fs::path& path, const char* symbol, PluginScope scope) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NODELETE | visibility_of(scope));
  void* entry = library != nullptr ? dlsym(library, symbol) : nullptr;
  if (entry == nullptr) {
    const char* reason = dlerror();
    throw UsageError("cannot load " + shown_path(path) + ": " +
                         (reason != nullptr ? reason : "it lacks its entry"),
                     "install the library that it needs, or leave the plug-in out");
  }
  return entry;
}

}  // namespace troika::detail
