// The words of the recipe for each enumeration: what the file says, what messages and logs print.
#pragma once

#include <troika/config/recipe.h>

#include <span>
#include <string_view>
#include <type_traits>

namespace troika {

// The words of an enumeration of recipe.h, in the order of its enumerators.
template <class Enum>
[[nodiscard]] std::span<const std::string_view> names_of();

// name_of(Precision::kBFloat16) is "bf16".
template <class Enum>
requires std::is_enum_v<Enum>
[[nodiscard]] std::string_view name_of(Enum value) {
  return names_of<Enum>()[static_cast<std::size_t>(value)];
}

template <>
std::span<const std::string_view> names_of<ModelKind>();
template <>
std::span<const std::string_view> names_of<Norm>();
template <>
std::span<const std::string_view> names_of<Position>();
template <>
std::span<const std::string_view> names_of<ActivationFunction>();
template <>
std::span<const std::string_view> names_of<Loss>();
template <>
std::span<const std::string_view> names_of<DataKind>();
template <>
std::span<const std::string_view> names_of<Pack>();
template <>
std::span<const std::string_view> names_of<Precision>();
template <>
std::span<const std::string_view> names_of<OnNonFinite>();
template <>
std::span<const std::string_view> names_of<OptimizerKind>();
template <>
std::span<const std::string_view> names_of<ScheduleKind>();
template <>
std::span<const std::string_view> names_of<PipelineScheduleKind>();
template <>
std::span<const std::string_view> names_of<ActivationCheckpoint>();
template <>
std::span<const std::string_view> names_of<EngineKind>();
template <>
std::span<const std::string_view> names_of<Offload>();

}  // namespace troika
