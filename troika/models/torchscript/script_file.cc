#include <ATen/ATen.h>
#include <torch/script.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_file.h>
#include <troika/nn/module_tensors.h>

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

// Values are kept, sent and saved as real numbers.
void refuse_complex(const std::filesystem::path& path, const std::string& what,
                    const std::string& name, const at::Tensor& tensor) {
  if (!tensor.is_complex()) return;
  throw UsageError(shown_path(path) + ": " + what + " " + quote(name, 200) + " is complex, " +
                       c10::toString(tensor.scalar_type()) + ", and troika keeps real numbers",
                   "keep torch.view_as_real() of it; torch.view_as_complex() in forward() makes it "
                   "complex again");
}

// A value that is not trained may have its elements apart. A parameter may not: the update of one
// element would no longer be that of the others.
void separate_elements(const std::filesystem::path& path, const std::string& name,
                       const at::Tensor& tensor) {
  if (!detail::shares_elements(tensor)) return;
  if (tensor.requires_grad()) {
    throw UsageError(shown_path(path) + ": the elements of parameter " + quote(name, 200) +
                         " share memory, as expand() makes them, and cannot be trained",
                     "call expand() in forward(), on a smaller parameter; or clone() makes "
                     "elements of their own");
  }
  const at::NoGradGuard no_grad;
  tensor.set_data(tensor.clone(at::MemoryFormat::Contiguous));
}

void check_tensors(const std::filesystem::path& path, const torch::jit::Module& module) {
  for (const auto& each : module.named_parameters()) {
    refuse_complex(path, "parameter", each.name, each.value);
    separate_elements(path, each.name, each.value);
  }
  for (const auto& each : module.named_buffers()) {
    refuse_complex(path, "buffer", each.name, each.value);
    separate_elements(path, each.name, each.value);
  }
}

torch::jit::Module load_file(const std::filesystem::path& path) {
  try {
    return torch::jit::load(path.string(), at::Device(at::kCPU));
  } catch (const std::exception& error) {
    throw refusal_of(path, error);
  }
}

}  // namespace

torch::jit::Module load_script(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw UsageError("there is no file " + shown_path(path),
                     "torch.jit.script(module).save(PATH) or torch.jit.trace(...) writes one");
  }
  torch::jit::Module module = load_file(path);
  check_tensors(path, module);
  return module;
}

}  // namespace troika
