// The keys of [model] with kind = "torchscript": a module that Python has scripted or traced.
#pragma once

#include <troika/models/kind.h>
#include <troika/models/row/network_file.h>

#include <string>

namespace troika {

inline constexpr const char* kSameFile = "same";

struct TorchscriptOptions : NetworkFile {
  std::string evaluation_path = kSameFile;

  bool operator==(const TorchscriptOptions&) const = default;
};

[[nodiscard]] const ModelKind& torchscript_kind();

}  // namespace troika
