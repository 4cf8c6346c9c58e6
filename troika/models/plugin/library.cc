#include <dlfcn.h>
#include <elf.h>
#include <torch/headeronly/version.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/plugin/library.h>
#include <troika/models/plugin/statement.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

namespace troika {
namespace {

constexpr const char* kHowToBuild =
    "the section on plug-ins of docs/models.md shows how one is built";

std::string content_of(const std::filesystem::path& file) {
  const std::string name = shown_path(file);
  if (!std::filesystem::is_regular_file(file)) {
    throw UsageError("there is no file " + name,
                     "library is the path of a plug-in, relative to the current folder");
  }
  std::ifstream stream(file, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw UsageError("cannot read " + name, "check its permissions");
  return content;
}

using Words = std::map<std::string, std::string, std::less<>>;

Words words_of(std::string_view text) {
  Words words;
  std::istringstream stream{std::string(text.substr(0, text.find('\0')))};
  for (std::string word; stream >> word;) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

Words statement_of(const std::filesystem::path& file, std::string_view content) {
  const std::size_t at = content.find(detail::kModelPluginMark);
  if (at == std::string::npos) {
    throw UsageError(shown_path(file) + " is no plug-in for models: it has no TROIKA_MODEL_PLUGIN",
                     kHowToBuild);
  }
  return words_of(content.substr(at));
}

void check_same(const std::filesystem::path& file, const Words& theirs, const Words& own,
                const std::string& key, const std::string& what) {
  const auto found = theirs.find(key);
  const std::string other = found == theirs.end() ? "an unknown one" : found->second;
  if (other == own.at(key)) return;
  throw UsageError(
      shown_path(file) + " was built for " + what + " " + other + ", and this is " + own.at(key),
      "build it again with the troika that loads it: find_package(troika)");
}

// The loader maps a file without a look at its length, and a missing page ends the process. The
// table of sections comes last in a file.
void check_whole(const std::filesystem::path& file, std::string_view content) {
  Elf64_Ehdr header{};
  if (content.size() < sizeof(header)) return;  // the loader says so
  std::memcpy(&header, content.data(), sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return;
  const std::uint64_t table = std::uint64_t{header.e_shnum} * header.e_shentsize;
  if (header.e_shoff <= content.size() && table <= content.size() - header.e_shoff) return;
  throw UsageError(shown_path(file) + " is cut short", "copy or build it again");
}

// The name that libtroika has for the loader.
std::string library_name() {
  return "libtroika.so." + std::string(kVersion.substr(0, kVersion.find('.')));
}

// The file of libtroika where this code lies in it; null where it lies in the program.
const char* own_library() {
  Dl_info info{};
  const auto here = reinterpret_cast<const void*>(&load_model_plugin);
  if (dladdr(here, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  const bool named =
      std::string_view(info.dli_fname).find("libtroika.so") != std::string_view::npos;
  return named ? info.dli_fname : nullptr;
}

// A second copy of the library would register LibTorch's operators again, and end the process.
void refuse_second_copy(const std::filesystem::path& file, std::string_view content) {
  const std::string needed = '\0' + library_name() + '\0';
  if (own_library() != nullptr || content.find(needed) == std::string_view::npos) return;
  throw UsageError(shown_path(file) + " links " + library_name() +
                       ", and this program has a troika of its own inside",
                   "link the plug-in to troika::plugin instead of troika::troika");
}

detail::ModelPluginEntry open_library(const std::filesystem::path& file) {
  // A program that loaded libtroika itself may keep its symbols from others.
  if (own_library() != nullptr) (void)dlopen(own_library(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  // A path with a slash: others are looked for in the system's folders.
  void* library =
      dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* entry = library != nullptr ? dlsym(library, detail::kModelPluginEntry) : nullptr;
  if (entry == nullptr) {
    const char* reason = dlerror();
    throw UsageError(
        "cannot load " + shown_path(file) + ": " + (reason != nullptr ? reason : "no entry"),
        "an undefined symbol of troika's is one that the headers declare and this program does not "
        "have; other libraries have to be where the loader finds them");
  }
  return reinterpret_cast<detail::ModelPluginEntry>(entry);
}

}  // namespace

const ModelKind& load_model_plugin(const std::filesystem::path& file) {
  const std::string content = content_of(file);
  const Words theirs = statement_of(file, content);
  static constexpr auto kOwn = detail::model_plugin_statement(TORCH_VERSION);
  const Words own = words_of({kOwn.text.data(), kOwn.text.size()});
  check_same(file, theirs, own, "troika", "troika");
  check_same(file, theirs, own, "libtorch", "LibTorch");
  check_same(file, theirs, own, "library", "the C++ library");
  check_same(file, theirs, own, "interface", "headers of troika with the interface");
  check_whole(file, content);
  refuse_second_copy(file, content);
  const detail::ModelPluginEntry entry = open_library(file);
  try {
    return *entry();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw UsageError(shown_path(file) + " throws when its kind is made: " + error.what());
  } catch (...) {
    throw UsageError(shown_path(file) + " throws when its kind is made: no std::exception");
  }
}

}  // namespace troika
