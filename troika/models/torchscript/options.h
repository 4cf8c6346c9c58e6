// The keys of [model] with kind = "torchscript": a module that Python has scripted or traced.
#pragma once

#include <troika/models/kind.h>
#include <troika/models/row/network_file.h>

namespace troika {

struct TorchscriptOptions : NetworkFile {
  bool operator==(const TorchscriptOptions&) const = default;
};

[[nodiscard]] const ModelKind& torchscript_kind();

}  // namespace troika
