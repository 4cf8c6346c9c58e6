// The keys of [model] with kind = "plugin": a kind of model in a library of the user's own, whose
// keys stand in [model.options].
#pragma once

#include <troika/models/kind.h>

#include <string>

namespace troika {

struct PluginOptions {
  std::string library;
  const ModelKind* kind = nullptr;  // the library's, once it is loaded
  Options own;                      // of that kind

  bool operator==(const PluginOptions&) const = default;
};

[[nodiscard]] const ModelKind& plugin_kind();

}  // namespace troika
