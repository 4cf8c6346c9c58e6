#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>
#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/version.h>
#include <troika/device/plugin_loader.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>

namespace troika {
namespace detail {
namespace {

// "13.0" for 13000.
std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The driver's library, through the few functions that tell what it can do. They start nothing
// before devices().
class Driver {
 public:
  explicit Driver(const std::string& file) : library_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      throw UsageError("NVIDIA's driver (" + file + ") is not installed",
                       "on a machine with a GPU install it, else train on the CPU");
    }
  }

  // 13000 for one that supports CUDA 13.0.
  [[nodiscard]] int version() const {
    int version = 0;
    static_cast<void>(call("cuDriverGetVersion", &version));
    return version;
  }

  [[nodiscard]] int devices() const {
    int count = 0;
    if (call("cuInit", 0U) == kNoDevice || (call("cuDeviceGetCount", &count) == 0 && count == 0)) {
      const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      const std::string seen =
          visible != nullptr ? std::string("; CUDA_VISIBLE_DEVICES is '") + visible + "'" : "";
      throw UsageError("NVIDIA's driver shows no GPU" + seen, "`nvidia-smi` lists them");
    }
    return count;
  }

  // Throws if a GPU is older than those that our kernels are compiled for: `oldest` is 80 for
  // compute capability 8.0.
  void check_capabilities(int count, int oldest) const {
    const auto attribute =
        reinterpret_cast<int (*)(int*, int, int)>(dlsym(library_, "cuDeviceGetAttribute"));
    for (int device = 0; attribute != nullptr && device < count; ++device) {
      int major = 0, minor = 0;
      if (attribute(&major, kMajor, device) != 0 || attribute(&minor, kMinor, device) != 0)
        continue;
      if (10 * major + minor >= oldest) continue;
      throw UsageError("the plug-in has no kernels for GPU " + std::to_string(device) +
                           ": its compute capability is " + std::to_string(major) + "." +
                           std::to_string(minor) + ", and they begin at " +
                           std::to_string(oldest / 10) + "." + std::to_string(oldest % 10),
                       "configure with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(major) +
                           std::to_string(minor) +
                           " too, or hide that GPU with CUDA_VISIBLE_DEVICES");
    }
  }

 private:
  static constexpr int kNoDevice = 100;
  static constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

  // Calls a function of the driver; throws unless it succeeds or finds no device.
  template <class Argument>
  [[nodiscard]] int call(const char* name, Argument argument) const {
    const auto function = reinterpret_cast<int (*)(Argument)>(dlsym(library_, name));
    const int code = function != nullptr ? function(argument) : -1;
    if (code != 0 && code != kNoDevice) {
      throw UsageError(
          "NVIDIA's driver does not work: " + std::string(name) + " says " + std::to_string(code),
          "`nvidia-smi` should list the GPUs; after an update of the driver, restart the machine");
    }
    return code;
  }

  void* library_;
};

// What the plug-in was built for, by name.
using Statement = std::map<std::string, std::string, std::less<>>;

std::string stated(const Statement& statement, std::string_view key) {
  const auto found = statement.find(key);
  return found == statement.end() ? "an unknown version" : found->second;
}

// 0 where it is not stated.
int stated_number(const Statement& statement, std::string_view key) {
  const std::string text = stated(statement, key);
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

Statement read_statement(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t at = content.find(cuda::kStatement);
  if (at == std::string::npos) {
    throw UsageError(file.string() + " is no plug-in of troika", "build and install it again");
  }
  std::istringstream words(content.c_str() + at + cuda::kStatement.size());  // up to a zero byte
  Statement statement;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) statement[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return statement;
}

void check_built_for(const std::filesystem::path& file, const Statement& statement,
                     std::string_view key, std::string_view name, std::string_view own) {
  const std::string other = stated(statement, key);
  if (other == own) return;
  throw UsageError(file.string() + " was built for " + std::string(name) + " " + other +
                       ", and this is " + std::string(own),
                   "build and install both together");
}

// A driver supports the libraries of its own major version, older and newer minor ones alike.
void check_driver(const Driver& driver, int libraries) {
  const int supported = driver.version();
  if (supported / 1000 >= libraries / 1000) return;
  throw UsageError("NVIDIA's driver supports CUDA " + cuda_version(supported) +
                       ", and LibTorch's libraries are of CUDA " + cuda_version(libraries),
                   "update the driver, or build with a LibTorch for CUDA " +
                       std::to_string(supported / 1000) + ", which Torch_DIR names");
}

const cuda::CudaPlugin& open(const std::filesystem::path& file) {
  const auto entry = [&] {
    try {
      return reinterpret_cast<cuda::PluginEntry>(load_plugin(file, cuda::kPluginEntry));
    } catch (const UsageError& error) {
      throw UsageError(error.what(),
                       "LibTorch's CUDA libraries have to be there: TROIKA_CUDA=1 make build "
                       "fetches them");
    }
  }();
  const cuda::CudaPlugin* plugin = entry(cuda::kPluginVersion);
  if (plugin == nullptr) {
    throw UsageError(file.string() + " belongs to another version of troika",
                     "build and install both together");
  }
  return *plugin;
}

// The plug-in that the program is linked to, wherever it lies.
std::optional<std::filesystem::path> linked_plugin() {
  void* library = dlopen(cuda::kPluginFile, RTLD_NOW | RTLD_NOLOAD);
  const void* entry = library != nullptr ? dlsym(library, cuda::kPluginEntry) : nullptr;
  Dl_info info{};
  if (entry == nullptr || dladdr(entry, &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

LoadedPlugin load_or_throw(const PluginFiles& files) {
  const Driver driver(files.driver);
  if (!files.plugin) {
    throw UsageError(std::string("there is no plug-in for CUDA (") + cuda::kPluginFile + ")",
                     "it is built where the CUDA toolkit is: TROIKA_CUDA=1 make build");
  }
  const Statement statement = read_statement(*files.plugin);
  check_built_for(*files.plugin, statement, "troika", "troika", kVersion);
  check_built_for(*files.plugin, statement, "libtorch", "LibTorch", TORCH_VERSION);
  const int libraries = stated_number(statement, "cuda");
  check_driver(driver, libraries);
  LoadedPlugin loaded;
  loaded.facts.devices = driver.devices();
  driver.check_capabilities(loaded.facts.devices, stated_number(statement, "oldest"));
  loaded.functions = &open(*files.plugin);
  if (!at::hasCUDA()) {
    throw UsageError("LibTorch was used before its plug-in for CUDA was loaded",
                     "call troika::load_device_plugin() first in main(), or link troika::cuda");
  }
  loaded.facts.libraries = "CUDA " + cuda_version(libraries);
  return loaded;
}

}  // namespace

LoadedPlugin load_plugin_from(const PluginFiles& files) {
  LoadedPlugin loaded;
  try {
    loaded = load_or_throw(files);
  } catch (const UsageError& error) {
    loaded.facts.reason = error.what();
    loaded.facts.hint = error.hint();
  }
  loaded.facts.type = "cuda";
  return loaded;
}

const LoadedPlugin& loaded_plugin() {
  static const LoadedPlugin kLoaded = [] {
    const auto linked = linked_plugin();
    return load_plugin_from({.plugin = linked ? linked : find_plugin(cuda::kPluginFile)});
  }();
  return kLoaded;
}

}  // namespace detail

const DevicePlugin& load_device_plugin() {
  return detail::loaded_plugin().facts;
}

}  // namespace troika
