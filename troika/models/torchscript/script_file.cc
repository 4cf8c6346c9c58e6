#include <torch/script.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/models/torchscript/script_file.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

namespace troika {
namespace {

constexpr const char* kHowToSave =
    "write it with torch.jit.script(module).save(PATH); torch.save() writes another format";

std::string first_line_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// The end of a file, where an archive has the names of what it holds.
std::string end_of(const std::filesystem::path& path) {
  constexpr std::streamoff kBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kBytes));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string start_of(const std::filesystem::path& path) {
  std::string bytes(4, '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), 4);
  return bytes;
}

// Says what a file is instead. LibTorch's reader of archives takes each for a damaged one.
UsageError refusal_of(const std::filesystem::path& path, const std::exception& error) {
  const std::string what = shown_path(path) + " is no TorchScript that can be loaded here: ";
  if (std::filesystem::file_size(path) == 0) return UsageError(what + "it is empty", kHowToSave);
  if (start_of(path) != "PK\x03\x04") return UsageError(what + "it is no archive", kHowToSave);
  const std::string end = end_of(path);
  if (end.find("PK\x05\x06") == std::string::npos) {
    return UsageError(what + "it is cut short", "copy it, or write it again");
  }
  if (end.find("archive_format") != std::string::npos) {
    return UsageError(what + "torch.export wrote it",
                      "write it with torch.jit.script(module).save(PATH)");
  }
  if (end.find("constants.pkl") == std::string::npos) {
    return UsageError(what + "it holds tensors without a program", kHowToSave);
  }
  return UsageError(what + first_line_of(error), kHowToSave);
}

}  // namespace

torch::jit::Module load_script(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw UsageError("there is no file " + shown_path(path),
                     "torch.jit.script(module).save(PATH) or torch.jit.trace(...) writes one");
  }
  try {
    return torch::jit::load(path.string(), at::Device(at::kCPU));
  } catch (const std::exception& error) {
    throw refusal_of(path, error);
  }
}

}  // namespace troika
