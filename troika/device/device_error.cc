#include <ATen/ATen.h>
#include <troika/device/device.h>
#include <troika/device/device_error.h>
#include <troika/device/facts.h>
#include <troika/device/out_of_memory.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace troika {
namespace {

// How LibTorch begins the errors of libraries for devices that have no type of their own.
constexpr auto kLibraries =
    std::to_array<std::string_view>({"CUDA error: ", "CUDA driver error: ", "cuDNN error: "});

std::string first_line_of_error(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

bool is_of_library(std::string_view line) {
  return std::ranges::any_of(kLibraries, [&](auto begin) { return line.starts_with(begin); });
}

// "CUDA error: an illegal memory access was encountered" without what the device's name says.
std::string without_library(const std::string& line) {
  constexpr std::string_view kSeparator = "error: ";
  const std::size_t at = line.find(kSeparator);
  return at == std::string::npos ? line : line.substr(at + kSeparator.size());
}

Error failed(at::Device device, const std::string& line) {
  return {ExitCode::kRankDied, name_of(device) + " has failed: " + without_library(line),
          device.is_cuda()
              ? "`dmesg` (Xid) and `nvidia-smi -q` say whether the GPU is broken; with "
                "CUDA_LAUNCH_BLOCKING=1 the error comes where a kernel went wrong"
              : "the log of the device's driver says whether it is broken"};
}

// "cumsum_cuda_kernel does not have a deterministic implementation, but you set ...", or a sentence
// on cuBLAS, which looks at the environment.
std::optional<Error> not_deterministic(at::Device device, const std::string& line) {
  const std::size_t at = line.find(" does not have a deterministic implementation");
  if (at != std::string::npos) {
    return Error(ExitCode::kUsage,
                 "deterministic = true: " + line.substr(0, at) +
                     " has no deterministic kernel on " + name_of(device),
                 "write train.deterministic = false, or train.device = \"cpu\"");
  }
  if (line.starts_with("Deterministic behavior was enabled")) {
    return Error(ExitCode::kUsage,
                 "deterministic = true: the matrix products of " + name_of(device) +
                     " need CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment",
                 "set it before the program starts; `troika train` does, where it is unset");
  }
  return std::nullopt;
}

}  // namespace

bool is_of_device(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
         is_of_library(first_line_of_error(error));
}

std::optional<Error> device_error(const c10::Error& error, at::Device device) {
  if (const auto* full = dynamic_cast<const c10::OutOfMemoryError*>(&error)) {
    return out_of_memory(*full, facts_of(device));
  }
  if (device.is_cpu()) return std::nullopt;
  const std::string line = first_line_of_error(error);
  // As when a library finds no room for its workspace, beside LibTorch's allocator.
  if (line.find("out of memory") != std::string::npos) {
    return out_of_memory(c10::OutOfMemoryError({}, line), facts_of(device));
  }
  if (is_of_device(error)) return failed(device, line);
  return not_deterministic(device, line);
}

}  // namespace troika
