#include <troika/config/choices.h>

#include <array>

namespace troika {
namespace {

// In the order of the enumerators.
constexpr auto kModelKinds = std::to_array<std::string_view>({"gpt", "mlp"});
constexpr auto kNorms = std::to_array<std::string_view>({"rmsnorm", "layernorm"});
constexpr auto kPositions = std::to_array<std::string_view>({"rope", "learned"});
constexpr auto kActivations =
    std::to_array<std::string_view>({"swiglu", "gelu", "gelu_tanh", "relu", "tanh"});
constexpr auto kLosses = std::to_array<std::string_view>({"cross_entropy", "mean_square"});
constexpr auto kDataKinds = std::to_array<std::string_view>({"text", "tokens", "random"});
constexpr auto kPacks = std::to_array<std::string_view>({"concatenate", "isolated", "pad"});
constexpr auto kPrecisions =
    std::to_array<std::string_view>({"auto", "fp64", "fp32", "bf16", "fp16"});
constexpr auto kOnNonFinite = std::to_array<std::string_view>({"stop", "skip"});
constexpr auto kOptimizers = std::to_array<std::string_view>({"sgd", "adamw", "lamb", "lars"});
constexpr auto kSchedules =
    std::to_array<std::string_view>({"constant", "linear", "cosine", "wsd"});
constexpr auto kPipelineSchedules = std::to_array<std::string_view>(
    {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"});
constexpr auto kActivationCheckpoints =
    std::to_array<std::string_view>({"none", "selective", "full"});
constexpr auto kEngines =
    std::to_array<std::string_view>({"auto", "shm", "gloo", "mpi", "nccl", "fake"});
constexpr auto kOffloads = std::to_array<std::string_view>({"none", "optimizer"});

}  // namespace

template <>
std::span<const std::string_view> names_of<ModelKind>() {
  return kModelKinds;
}
template <>
std::span<const std::string_view> names_of<Norm>() {
  return kNorms;
}
template <>
std::span<const std::string_view> names_of<Position>() {
  return kPositions;
}
template <>
std::span<const std::string_view> names_of<ActivationFunction>() {
  return kActivations;
}
template <>
std::span<const std::string_view> names_of<Loss>() {
  return kLosses;
}
template <>
std::span<const std::string_view> names_of<DataKind>() {
  return kDataKinds;
}
template <>
std::span<const std::string_view> names_of<Pack>() {
  return kPacks;
}
template <>
std::span<const std::string_view> names_of<Precision>() {
  return kPrecisions;
}
template <>
std::span<const std::string_view> names_of<OnNonFinite>() {
  return kOnNonFinite;
}
template <>
std::span<const std::string_view> names_of<OptimizerKind>() {
  return kOptimizers;
}
template <>
std::span<const std::string_view> names_of<ScheduleKind>() {
  return kSchedules;
}
template <>
std::span<const std::string_view> names_of<PipelineScheduleKind>() {
  return kPipelineSchedules;
}
template <>
std::span<const std::string_view> names_of<ActivationCheckpoint>() {
  return kActivationCheckpoints;
}
template <>
std::span<const std::string_view> names_of<EngineKind>() {
  return kEngines;
}
template <>
std::span<const std::string_view> names_of<Offload>() {
  return kOffloads;
}

}  // namespace troika
