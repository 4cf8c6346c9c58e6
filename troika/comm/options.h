// The section [comm] of a recipe, and the engines that a user may choose.
#pragma once

#include <troika/config/key.h>

#include <string_view>
#include <vector>

namespace troika {

enum class EngineKind { kAuto, kShm, kGloo, kMpi, kNccl, kFake };

template <>
std::span<const std::string_view> names_of<EngineKind>();

struct CommOptions {
  EngineKind engine = EngineKind::kAuto;
  double timeout_seconds = 60;
  double rendezvous_timeout_seconds = 300;

  bool operator==(const CommOptions&) const = default;
};

[[nodiscard]] std::vector<Key> comm_keys();

}  // namespace troika
